"""The largest numbers of 32 bits, which is what settings are on a device, and the smallest that is not 0 there."""

LARGEST = 2**31 - 1
LARGEST_FLOAT = 3.4028234663852886e38
SMALLEST_FLOAT = 1.1754943508222875e-38
