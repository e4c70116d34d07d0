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

/* Sets whose names not every compiler knows. X(name, number, subleaf of CPUID 7, register, bit); what the system must
 * save for them, it saves for AVX or AVX-512, which are on the other list. */
#define OE_CPU_FEATURES_BY_CPUID(X)                                                                                    \
    X("avxvnni", 21, 1, a, 4) X("avx512bf16", 22, 1, a, 5) X("avx512fp16", 23, 0, d, 23) X("gfni", 24, 0, c, 8)

#endif
