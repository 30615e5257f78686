// Arrays by their names, as models are stored. Whoever has a model puts its arrays here; only what is made of them knows
// what lies where.
#pragma once
#include "kernels.h"

#include <deque>
#include <map>
#include <string>
#include <vector>

template <class T> struct TypeOf;  // as NumPy and safetensors name types
template <> struct TypeOf<int32_t> { static constexpr const char *name = "i4"; };
template <> struct TypeOf<int64_t> { static constexpr const char *name = "i8"; };
template <> struct TypeOf<uint16_t> { static constexpr const char *name = "u2"; };
template <> struct TypeOf<uint32_t> { static constexpr const char *name = "u4"; };
template <> struct TypeOf<float> { static constexpr const char *name = "f4"; };
template <> struct TypeOf<double> { static constexpr const char *name = "f8"; };

class Named {
  public:
    std::string problem;  // what is wrong with these arrays: the first thing that was found, or nothing

    // The array stays where it is, and must stay there.
    void put(const std::string &name, const std::string &type, const void *data, int64_t size) {
        arrays[name] = {type, data, size};
    }

    // The number of entries of an array; 0 without one.
    int64_t size(const std::string &name) const {
        auto found = arrays.find(name);
        return found == arrays.end() ? 0 : found->second.size;
    }

    bool require(bool sound, const std::string &name, const char *what = " is damaged") {
        if (!sound && problem.empty()) problem = name + what;
        return sound;
    }

    // Points to an array with this number of entries; false if there is none.
    template <class T>
    bool get(const std::string &name, const T *&out, int64_t size) {
        auto found = arrays.find(name);
        if (!require(found != arrays.end(), name, " is missing")) return false;
        const Array &array = found->second;
        if (!require(array.type == TypeOf<T>::name && array.size == size, name, " has another type or size")) return false;
        out = (const T *)array.data;
        return true;
    }

    // Room for numbers that follow from these arrays, all zero, as long as they live.
    template <class T>
    T *make(int64_t n) {
        made.emplace_back((n * sizeof(T) + 7) / 8);
        return (T *)made.back().data();
    }

  private:
    struct Array {
        std::string type;
        const void *data;
        int64_t size;
    };
    std::map<std::string, Array> arrays;
    std::deque<std::vector<uint64_t>> made;
};
