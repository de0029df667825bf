package rng

// The values of A that TPC-C clause 2.1.6 fixes for each use of NURand.
const (
	ACLast = 255  // C_LAST, over [0 .. 999]
	ACID   = 1023 // C_ID, over [1 .. 3000]
	AOLIID = 8191 // OL_I_ID, over [1 .. 100000]
)

// NURand returns a non-uniform number in [x, y]:
//
//	(((random(0 .. a) | random(x .. y)) + c) % (y - x + 1)) + x
//
// (TPC-C clause 2.1.6). c is the run-time constant chosen once within [0 .. a]
// for the field in question, see [Constants]. It panics if x > y or a < 0.
func (s *Stream) NURand(a, x, y, c int64) int64 {
	return ((s.Range(0, a)|s.Range(x, y))+c)%(y-x+1) + x
}

// Constants are the run-time constants C of NURand, one per field (TPC-C clause
// 2.1.6: the same value is used for a field by every terminal). All workers of
// a run must share one value; draw it once from the run's root stream.
type Constants struct {
	CLast int64 // for C_LAST
	CID   int64 // for C_ID
	OLIID int64 // for OL_I_ID
}

// LoadConstants draws the constants used to populate the database. The loader
// must store CLast (C-Load) so that a later run can satisfy [RunConstants].
func LoadConstants(s *Stream) Constants {
	return Constants{CLast: s.Range(0, ACLast), CID: s.Range(0, ACID), OLIID: s.Range(0, AOLIID)}
}

// RunConstants draws the constants of a measured run over a database that was
// populated with the given C-Load. Its CLast (C-Run) is uniform over the values
// that [ValidCDelta] accepts. It panics if cLoad is outside [0 .. 255].
func RunConstants(s *Stream, cLoad int64) Constants {
	if cLoad < 0 || cLoad > ACLast {
		panic("rng: C-Load outside [0 .. 255]")
	}
	c := LoadConstants(s)
	for !ValidCDelta(cLoad, c.CLast) {
		c.CLast = s.Range(0, ACLast)
	}
	return c
}

// ValidCDelta reports whether C-Run may be used for C_LAST over a database
// populated with C-Load: the absolute difference must lie in [65 .. 119] and be
// neither 96 nor 112 (TPC-C clause 2.1.6.1).
func ValidCDelta(cLoad, cRun int64) bool {
	delta := cLoad - cRun
	if delta < 0 {
		delta = -delta
	}
	return delta >= 65 && delta <= 119 && delta != 96 && delta != 112
}

// alphanumerics are the characters of an a-string. Clause 4.3.2.2 asks for
// upper and lower case letters and digits.
const alphanumerics = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"

// AString appends a random a-string [x .. y] to dst and returns the result:
// random alphanumeric characters, the length uniform in [x, y] (TPC-C clause
// 4.3.2.2). It allocates only if dst lacks the capacity.
func (s *Stream) AString(dst []byte, x, y int) []byte {
	// Ten draws of [0 .. 61] come out of one bounded word, since loading a
	// warehouse needs some 40 million characters.
	const perWord, words = 10, 62 * 62 * 62 * 62 * 62 * 62 * 62 * 62 * 62 * 62
	for n := s.Range(int64(x), int64(y)); n > 0; {
		w := s.Uint64n(words)
		for i := 0; i < perWord && n > 0; i++ {
			dst = append(dst, alphanumerics[w%62])
			w /= 62
			n--
		}
	}
	return dst
}

// NString appends a random n-string [x .. y] to dst and returns the result:
// random digits, the length uniform in [x, y] (TPC-C clause 4.3.2.2). It
// allocates only if dst lacks the capacity.
func (s *Stream) NString(dst []byte, x, y int) []byte {
	const perWord, words = 19, 10_000_000_000_000_000_000
	for n := s.Range(int64(x), int64(y)); n > 0; {
		w := s.Uint64n(words)
		for i := 0; i < perWord && n > 0; i++ {
			dst = append(dst, '0'+byte(w%10))
			w /= 10
			n--
		}
	}
	return dst
}
