/* Logarithm and exponential that give the same bits on every machine: C libraries differ in the last ones, and a bit
 * may decide whether a token stays. Sums and products of doubles in a fixed order, compiled without contraction; the
 * relative error is a few times 2^-53. */
#ifndef OE_EXACT_MATH_H
#define OE_EXACT_MATH_H

#include <math.h>

#define OE_LN2_HIGH 0x1.62e42fee00000p-1 /* ln 2 in two parts: a product of the first with an exponent is exact */
#define OE_LN2_LOW 0x1.a39ef35793c76p-33
#define OE_LN2 0x1.62e42fefa39efp-1

/* ln(x) for 0 < x < infinity. With x = 2^e * m, 1/sqrt(2) <= m < sqrt(2): e * ln 2 + 2 * atanh((m - 1) / (m + 1)). */
static inline double oe_log(double x) {
    int e;
    double m = frexp(x, &e);
    if (m < 0x1.6a09e667f3bcdp-1) {
        m *= 2.0;
        e -= 1;
    }
    const double z = (m - 1.0) / (m + 1.0), zz = z * z; /* |z| < 0.1716: the term behind the last one is below 2^-60 */
    double sum = 0.0;
    for (int k = 21; k >= 3; k -= 2) {
        sum = (sum + 1.0 / (double)k) * zz;
    }
    return (double)e * OE_LN2_HIGH + (2.0 * z + (2.0 * z * sum + (double)e * OE_LN2_LOW));
}

/* e^x; 0 below -700, at most e^700. With x = n * ln 2 + r, |r| <= ln(2) / 2: 2^n times the Taylor series of e^r. */
static inline double oe_exp(double x) {
    if (!(x > -700.0)) {
        return 0.0;
    }
    x = x < 700.0 ? x : 700.0;
    const double n = floor(x / OE_LN2 + 0.5);
    const double r = (x - n * OE_LN2_HIGH) - n * OE_LN2_LOW;
    double sum = 1.0;
    for (int k = 16; k >= 1; k--) {
        sum = sum * r / (double)k + 1.0;
    }
    return ldexp(sum, (int)n);
}

/* base^exponent for base >= 0. */
static inline double oe_pow(double base, double exponent) {
    if (exponent == 0.0) {
        return 1.0;
    }
    return base > 0.0 ? oe_exp(exponent * oe_log(base)) : 0.0;
}

#endif
