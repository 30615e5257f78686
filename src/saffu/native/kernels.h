// Shared by all kernels, which are called through ctypes: plain C functions over NumPy arrays.
#pragma once
#include <cstdint>
#include <exception>
#include <new>
#include <stdexcept>

constexpr int64_t PAD = 0, EOD = 3;  // as in saffu/text/tokenizer.py
using Token = uint16_t;              // an id, a rank, or a class; as TOKEN in kernels.py

#ifdef _WIN32
#define EXPORT __declspec(dllexport)
#else
#define EXPORT __attribute__((visibility("default")))
#endif

// Asks for memory that will be read soon.
inline void will_read(const void *address) {
#if defined(__GNUC__) || defined(__clang__)
    __builtin_prefetch(address);
#else
    (void)address;
#endif
}

struct Buffer {  // memory that the caller frees with saffu_free
    void *data;
    int64_t bytes;
};

void allocate(int64_t bytes, Buffer *buffer);  // throws std::bad_alloc

// No exception may leave a kernel: `void f(…) KERNEL { … } OR_FAIL(result)`. Two can be thrown, that a count does not fit
// and that memory is exhausted; Python finds out by saffu_failure. A page has no exceptions: there it is a trap.
enum Failure : int32_t { NONE, OUT_OF_MEMORY, COUNT_TOO_LARGE };  // as in calibrated/kernels.py
extern thread_local Failure failure;
#ifdef __cpp_exceptions
#define KERNEL { try
#define OR_FAIL(...) \
    catch (const std::overflow_error &) { failure = COUNT_TOO_LARGE; return __VA_ARGS__; } \
    catch (const std::exception &) { failure = OUT_OF_MEMORY; return __VA_ARGS__; } }
[[noreturn]] inline void fail(Failure why) {
    if (why == COUNT_TOO_LARGE) throw std::overflow_error("a count does not fit");
    throw std::bad_alloc();
}
#else
#define KERNEL {
#define OR_FAIL(...) }
[[noreturn]] inline void fail(Failure) { __builtin_trap(); }
#endif

inline void require_count(int64_t count) {
    if (count > UINT32_MAX) fail(COUNT_TOO_LARGE);
}
