// Mapped files and the memory they take: kernels release pages when the process exceeds its limit.
//
// Reading a mapped file brings many pages into memory that are never used, faster than another thread could release
// them. So kernels check the memory in use themselves, now and then (see Pace).
#include "kernels.h"

#include <atomic>

#if !defined(_WIN32) && !defined(__wasi__)
#define HAS_SIGNALS
#include <signal.h>
#include <unistd.h>
#endif
#ifdef __linux__
#include <cstdlib>
#include <fcntl.h>
#include <mutex>
#include <sys/mman.h>
#include <vector>
#endif

namespace {

std::atomic<int64_t> most{0};     // bytes that may be in memory; 0 for no limit

#ifdef __linux__
struct Region {
    void *begin;
    int64_t bytes;
};

std::mutex guard;
std::vector<Region> regions;      // everything that saffu_map has mapped
#endif

#ifdef HAS_SIGNALS
void end_with_a_line(int) {       // calls nothing that a signal handler may not call
    static const char line[] =
        "saffu: a file became shorter, or its disk failed, while it was in use; restore the model or train again\n";
    if (write(2, line, sizeof line - 1) < 0) _exit(3);
    _exit(2);
}
#endif

}  // namespace

bool limited() { return most.load(std::memory_order_relaxed) > 0; }

extern "C" {

EXPORT void saffu_limit(int64_t bytes) { most = bytes; }

// What happens when a page of a mapped file is gone (SIGBUS): the process ends with one line, or as it did before.
EXPORT void saffu_explain_lost_pages([[maybe_unused]] int32_t explain) {
#ifdef HAS_SIGNALS
    static struct sigaction before;
    struct sigaction ours = {};
    ours.sa_handler = end_with_a_line;
    if (explain) sigaction(SIGBUS, &ours, &before);
    else sigaction(SIGBUS, &before, nullptr);
#endif
}

#ifdef __linux__
// Maps a file, to be read and written; null if that is not possible.
EXPORT void *saffu_map(int32_t file, int64_t bytes) KERNEL {
    std::lock_guard<std::mutex> lock(guard);
    regions.reserve(regions.size() + 1);
    void *begin = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (begin == MAP_FAILED) return nullptr;
    regions.push_back({begin, bytes});
    return begin;
} OR_FAIL(nullptr)

EXPORT void saffu_unmap(void *begin) {
    std::lock_guard<std::mutex> lock(guard);
    for (Region &region : regions)
        if (region.begin == begin) {
            munmap(begin, region.bytes);
            region = regions.back();
            regions.pop_back();
            return;
        }
}

// If more memory is in use than allowed, releases the next eighth of the mapped pages. A page that is needed again is read
// from its file.
EXPORT void saffu_give_back() {
    static int file = open("/proc/self/statm", O_RDONLY | O_CLOEXEC);
    if (!limited() || file < 0) return;
    char text[128] = {0}, *end;
    if (pread(file, text, sizeof text - 1, 0) <= 0) return;
    std::strtoll(text, &end, 10);
    if (std::strtoll(end, nullptr, 10) * sysconf(_SC_PAGESIZE) <= most) return;
    std::lock_guard<std::mutex> lock(guard);
    static size_t turn = 0;
    int64_t all = 0, forgotten = 0;
    for (const Region &region : regions) all += region.bytes;
    for (size_t n = 0; n < regions.size() && forgotten * 8 < all; n++) {
        const Region &region = regions[turn++ % regions.size()];
        madvise(region.begin, region.bytes, MADV_DONTNEED);
        forgotten += region.bytes;
    }
}
#else
EXPORT void *saffu_map(int32_t, int64_t) { return nullptr; }
EXPORT void saffu_unmap(void *) {}
EXPORT void saffu_give_back() {}
#endif
}
