"""The largest numbers of 32 bits, which is what settings are on a device."""

LARGEST = 2**31 - 1
LARGEST_FLOAT = 3.4028234663852886e38
