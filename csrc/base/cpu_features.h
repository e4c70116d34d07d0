/* Instruction sets that a compiler uses on its own where its flags allow them, such as those of -march=native. Sets
 * that come with a listed one on every CPU (LZCNT, MOVBE: AVX2) are left out. */
#ifndef OE_CPU_FEATURES_H
#define OE_CPU_FEATURES_H

/* X(name for __builtin_cpu_supports, number) */
#define OE_CPU_FEATURES(X)                                                                                             \
    X("sse3", 0) X("ssse3", 1) X("sse4.1", 2) X("sse4.2", 3) X("popcnt", 4) X("avx", 5) X("avx2", 6) X("fma", 7)       \
    X("f16c", 8) X("bmi", 9) X("bmi2", 10) X("avx512f", 11) X("avx512cd", 12) X("avx512bw", 13) X("avx512dq", 14)      \
    X("avx512vl", 15) X("avx512vbmi", 16) X("avx512vbmi2", 17) X("avx512vnni", 18) X("avx512bitalg", 19)               \
    X("avx512vpopcntdq", 20)

#endif
