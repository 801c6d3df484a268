package reads

import "hash/crc32"

// Checksums of concatenated bytes are found from those of the parts: appending n
// bytes multiplies a CRC by x^8n, modulo the polynomial, before the CRC of the n
// bytes is added. Polynomials have their highest power in the lowest bit.

const (
	crcOne   = 1 << 31 // x^0
	crcShift = 1 << 23 // x^8, one byte
)

// crcMul multiplies two polynomials modulo that of CRC-32.
func crcMul(a, b uint32) uint32 {
	var product uint32
	for bit := uint32(crcOne); bit != 0; bit >>= 1 {
		if a&bit != 0 {
			product ^= b
		}
		b = b>>1 ^ crc32.IEEE&-(b&1)
	}
	return product
}

// crcPower is what a CRC is multiplied by when n bytes are appended.
func crcPower(n int) uint32 {
	power, square := uint32(crcOne), uint32(crcShift)
	for ; n > 0; n >>= 1 {
		if n&1 != 0 {
			power = crcMul(power, square)
		}
		square = crcMul(square, square)
	}
	return power
}

// crcJoin is the CRC of bytes with CRC a, followed by bytes with CRC b whose length
// has the crcPower power.
func crcJoin(a, b, power uint32) uint32 { return crcMul(power, a) ^ b }
