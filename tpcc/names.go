package tpcc

// syllables of last names (clause 4.3.2.3).
var syllables = [10]string{"BAR", "OUGHT", "ABLE", "PRI", "PRES", "ESE", "ANTI", "CALLY", "ATION", "EING"}

// LastName appends the last name number n, in [0 .. 999], to dst: the
// syllables of its three digits (clause 4.3.2.3).
func LastName(dst []byte, n int64) []byte {
	dst = append(dst, syllables[n/100%10]...)
	dst = append(dst, syllables[n/10%10]...)
	return append(dst, syllables[n%10]...)
}
