package rolex

import (
	"errors"
	"fmt"

	"drtmx/internal/block"
)

// An intent, in a writer's slot:
//
//	0 number of the transaction   1 checksum   2 words(32) | leaves(32)
//	for each leaf: address, header before, header after, runs
//	for each run: first word(32) | words(32), and the words
const (
	intentSeqWord   = block.HeaderWord
	intentSizeWord  = 2
	intentHeadWords = 3
	intentLeafWords = 4
)

// errIntent reports a slot without a complete intent.
var errIntent = errors.New("rolex: no complete intent")

// ErrTooLarge reports a transaction whose intent does not fit a slot.
var ErrTooLarge = errors.New("rolex: a transaction changes too much")

// intentBuilder builds the intent of a transaction.
type intentBuilder struct {
	w      []uint64
	leaves int
	runsAt int // word of the number of runs of the last leaf
}

func (b *intentBuilder) begin(seq uint64) {
	b.w, b.leaves = append(b.w[:0], seq, 0, 0), 0
}

// leaf adds a leaf whose header will change from one to another.
func (b *intentBuilder) leaf(addr uint64, from, to Header) {
	b.w = append(b.w, addr, uint64(from), uint64(to), 0)
	b.runsAt = len(b.w) - 1
	b.leaves++
}

// run adds words of the last leaf, and returns where they are in the intent.
func (b *intentBuilder) run(first int, words []uint64) (at int) {
	b.w = append(b.w, uint64(first)<<32|uint64(len(words)))
	at = len(b.w)
	b.w = append(b.w, words...)
	b.w[b.runsAt]++
	return at
}

// end completes the intent for a slot.
func (b *intentBuilder) end(slot uint64) error {
	if len(b.w) > slotWords {
		return fmt.Errorf("%w: an intent of %d words, at most %d", ErrTooLarge, len(b.w), slotWords)
	}
	b.w[intentSizeWord] = uint64(len(b.w))<<32 | uint64(b.leaves)
	b.w[block.ChecksumWord] = block.Checksum(slot, b.w)
	return nil
}

// intended is one leaf of an intent.
type intended struct {
	addr     uint64
	from, to Header
	runs     []uint64 // as they are encoded
}

// decodeIntent decodes the words of a slot, which a client may have filled with anything.
func decodeIntent(slot uint64, w []uint64) (seq uint64, leaves []intended, err error) {
	if len(w) < intentHeadWords {
		return 0, nil, errIntent
	}
	size, n := w[intentSizeWord]>>32, w[intentSizeWord]&0xffffffff
	if size < intentHeadWords || size > uint64(len(w)) || n > size/intentLeafWords || w[block.ChecksumWord] != block.Checksum(slot, w[:size]) {
		return 0, nil, errIntent
	}
	seq, w = w[intentSeqWord], w[intentHeadWords:size]
	for range n {
		if len(w) < intentLeafWords {
			return 0, nil, errIntent
		}
		l, runs := intended{addr: w[0], from: Header(w[1]), to: Header(w[2])}, w[3]
		w = w[intentLeafWords:]
		rest := w
		for range runs {
			if len(w) == 0 || w[0]&0xffffffff >= uint64(len(w)) {
				return 0, nil, errIntent
			}
			w = w[1+w[0]&0xffffffff:]
		}
		l.runs = rest[:len(rest)-len(w)]
		leaves = append(leaves, l)
	}
	if len(w) > 0 {
		return 0, nil, errIntent
	}
	return seq, leaves, nil
}

// each calls f for the runs of a leaf.
func (l *intended) each(f func(first int, words []uint64)) {
	for w := l.runs; len(w) > 0; {
		n := int(w[0] & 0xffffffff)
		f(int(w[0]>>32), w[1:1+n])
		w = w[1+n:]
	}
}
