package indextest

import (
	"fmt"

	"drtmx/index"
	"drtmx/internal/block"
	"drtmx/internal/rng"
)

// Rows are derived from key and version, so that a reader can tell whether a
// row is one that was ever written, whole, under its header.

func derive(key index.Key, csn block.CSN, i int) uint64 {
	x := key*0x9e3779b97f4a7c15 ^ uint64(csn)*0xd6e8feb86659fd93 ^ uint64(i+1)*0xff51afd7ed558ccd
	return x ^ x>>29
}

func fillRow(row []uint64, key index.Key, csn block.CSN) {
	for i := range row {
		row[i] = derive(key, csn, i)
	}
	if len(row) > 0 {
		row[0] = uint64(csn)
	}
}

// checkRow verifies that a row is whole and is the one of its key and header.
func checkRow(key index.Key, row []uint64, h block.Header, words int) error {
	if h.Locked() || h.IsAbsent() {
		return fmt.Errorf("key %d: returned with header %v", key, h)
	}
	if len(row) != words {
		return fmt.Errorf("key %d: a row of %d words, want %d", key, len(row), words)
	}
	if words == 0 {
		return nil
	}
	csn := block.CSN(row[0])
	for i := 1; i < words; i++ {
		if row[i] != derive(key, csn, i) {
			return fmt.Errorf("key %d: word %d is not of version %d.%d: the row is torn or another key's", key, i, csn.Epoch(), csn.Seq())
		}
	}
	if h.CSN() != csn {
		return fmt.Errorf("key %d: header %v over the row of version %d.%d", key, h, csn.Epoch(), csn.Seq())
	}
	return nil
}

// keyspace maps the small numbers that workloads draw to keys, in order.
type keyspace struct {
	keys    []index.Key
	numbers map[index.Key]int
	step    uint64 // between neighbours, about
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
		keyOf = func(i int) index.Key { return base + uint64(i)*step }
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
