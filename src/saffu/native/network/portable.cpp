// The network's arithmetic with the vectors of 16 bytes that compilers offer for any machine.
#define VECTOR 16
#ifdef __aarch64__
#define ROWS 8  // of its 32 registers, a tile takes 16
#else
#define ROWS 4
#endif
#define NAME portable
#include "arithmetic.h"
