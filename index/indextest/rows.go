package indextest

import (
	"fmt"
	"strings"

	"drtmx/index"
	"drtmx/internal/block"
	"drtmx/internal/rng"
)

// Rows are derived from key and version, so that a reader can tell whether a
// row is one that was ever written, whole, under its header.

// digest is what rows know of their key.
func digest(key index.Key) uint64 {
	num := key.Num
	for j := range len(key.Str) {
		num = num*0x100000001b3 + uint64(key.Str[j]) + 1
	}
	return num
}

// derive is word i of the row of a key with this digest.
func derive(num uint64, csn block.CSN, i int) uint64 {
	x := num*0x9e3779b97f4a7c15 ^ uint64(csn)*0xd6e8feb86659fd93 ^ uint64(i+1)*0xff51afd7ed558ccd
	return x ^ x>>29
}

func fillRow(row []uint64, key index.Key, csn block.CSN) {
	num := digest(key)
	for i := range row {
		row[i] = derive(num, csn, i)
	}
	if len(row) > 0 {
		row[0] = uint64(csn)
	}
}

// shape is the size of rows: fixed, or the most words there are of a row whose
// size depends on its key and version.
type shape struct {
	words    int
	variable bool
}

// of is the number of words of one row.
func (s shape) of(key index.Key, csn block.CSN) int {
	if !s.variable {
		return s.words
	}
	return 1 + int(derive(digest(key), csn, -1)%uint64(s.words))
}

// row makes a row.
func (s shape) row(key index.Key, csn block.CSN) []uint64 {
	row := make([]uint64, s.of(key, csn))
	fillRow(row, key, csn)
	return row
}

// checkRow verifies that a row is whole and is the one of its key and header.
func checkRow(eng *Engine, key index.Key, row []uint64, h block.Header, s shape) error {
	if h.Locked() || h.IsAbsent() {
		return fmt.Errorf("key %v: returned with header %v", key, h)
	}
	if len(row) == 0 && s.words == 0 && !s.variable {
		return nil
	}
	if len(row) == 0 || !s.variable && len(row) != s.words {
		return fmt.Errorf("key %v: a row of %d words, want %d", key, len(row), s.words)
	}
	csn := block.CSN(row[0])
	if want := s.of(key, csn); len(row) != want {
		return fmt.Errorf("key %v: a row of %d words, version %d.%d has %d", key, len(row), csn.Tick(), csn.Seq(), want)
	}
	num := digest(key)
	for i := 1; i < len(row); i++ {
		if row[i] != derive(num, csn, i) {
			return fmt.Errorf("key %v: word %d is not of version %d.%d: the row is torn or another key's", key, i, csn.Tick(), csn.Seq())
		}
	}
	if !eng.isVersion(row, h, csn) {
		return fmt.Errorf("key %v: header %v over the row of version %d.%d", key, h, csn.Tick(), csn.Seq())
	}
	return nil
}

// keyspace maps the small numbers that workloads draw to keys, in order.
type keyspace struct {
	keys    []index.Key
	numbers map[index.Key]int
	step    uint64 // between neighbours that are numbers, about
}

// newKeyspace draws a key space of n keys: dense, spread over all of uint64
// with both ends in it, or spaced; or it is the one that keyOf gives.
func newKeyspace(r *rng.Stream, n int, keyOf func(i int) index.Key) keyspace {
	base, step := uint64(0), uint64(1)
	switch r.Intn(3) {
	case 0:
	case 1:
		step = ^uint64(0) / uint64(n-1)
		base = ^uint64(0) - step*uint64(n-1)
	default:
		base, step = r.Uint64n(1<<40), 1+r.Uint64n(1<<20)
	}
	if keyOf == nil {
		keyOf = func(i int) index.Key { return index.Num(base + uint64(i)*step) }
	}
	k := keyspace{numbers: map[index.Key]int{}, step: step}
	for i := range n {
		k.keys = append(k.keys, keyOf(i))
		k.numbers[keyOf(i)] = i
	}
	return k
}

func (k keyspace) n() int { return len(k.keys) }

func (k keyspace) key(i int) index.Key { return k.keys[i] }

// near is a key that probably is not of the space, not below key.
func (k keyspace) near(key index.Key, r *rng.Stream) index.Key {
	if k.keys[0].Str != "" || k.keys[len(k.keys)-1].Str != "" {
		return index.Str(key.Str + string([]byte{byte(r.Intn(256))})[:r.Intn(2)])
	}
	return index.Num(key.Num + r.Uint64n(k.step+1))
}

// ends are the lowest and the highest key that there can be.
func (k keyspace) ends() (lo, hi index.Key) {
	if k.keys[0].Str != "" || k.keys[len(k.keys)-1].Str != "" {
		return index.Str(""), index.Str(strings.Repeat("\xff", index.MaxKeyBytes))
	}
	return index.Num(0), index.Num(^uint64(0))
}

// within reports whether lo ≤ key ≤ hi.
func within(key, lo, hi index.Key) bool { return key.Compare(lo) >= 0 && key.Compare(hi) <= 0 }

// number is the inverse of key; ok is false for a key not of the space.
func (k keyspace) number(key index.Key) (int, bool) {
	i, ok := k.numbers[key]
	return i, ok
}

// clone copies proofs out of an operation's buffers.
func clone(p []index.Proof) []index.Proof { return append([]index.Proof(nil), p...) }

// scanProofs returns the two sets of proofs of a scan.
func scanProofs(res *index.ScanResult) (quick, exact []index.Proof) {
	exact = clone(res.Gaps)
	for _, e := range res.Entries {
		exact = append(exact, index.Proof{Addr: e.Addr, Word: uint64(e.Header)})
	}
	return clone(res.Quick), exact
}
