package rdmatest

import (
	"math/rand/v2"
	"os"
	"strconv"
	"testing"
	"time"
)

// Mutated calls f with n inputs that are almost well-formed: seeds with a few
// changed bytes or words, or that are cut or extended. It works like a fuzzer
// without the search for new paths, and is many times faster. The environment
// variable DRTMX_LONG multiplies n.
func Mutated(t testing.TB, n int, seeds [][]byte, f func([]byte)) {
	t.Helper()
	if long, err := strconv.Atoi(os.Getenv("DRTMX_LONG")); err == nil && long > 0 {
		n *= long
	}
	r := rand.New(rand.NewPCG(Seed(t), 0))
	var b []byte
	start := time.Now()
	for range n {
		b = append(b[:0], seeds[r.IntN(len(seeds))]...)
		for range r.IntN(4) {
			b = mutate(r, b, seeds)
		}
		f(b)
		if t.Failed() {
			t.Fatalf("the input was %x", b)
		}
	}
	t.Logf("%d executions, %.0f a second", n, float64(n)/time.Since(start).Seconds())
}

// mutate changes one thing.
func mutate(r *rand.Rand, b []byte, seeds [][]byte) []byte {
	if len(b) == 0 {
		return append(b, byte(r.Uint32()))
	}
	i := r.IntN(len(b))
	switch r.IntN(7) {
	case 0:
		b[i] ^= 1 << r.IntN(8)
	case 1:
		b[i] = byte(r.Uint32())
	case 2: // small numbers and large ones, as counts and lengths are
		for j := i &^ 3; j < min(i&^3+4, len(b)); j++ {
			b[j] = 0
		}
		b[i&^3] = byte(r.IntN(8))
	case 3:
		for j := i &^ 3; j < min(i&^3+4, len(b)); j++ {
			b[j] = 0xff
		}
	case 4:
		b = b[:i]
	case 5:
		s := seeds[r.IntN(len(seeds))]
		b = append(b, s[r.IntN(len(s)+1):]...)
	case 6:
		b[i] += byte(r.IntN(3)) - 1
	}
	return b
}
