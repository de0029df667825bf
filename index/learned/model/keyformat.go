package model

import (
	"fmt"

	"drtmx/index"
	"drtmx/index/learned/leaf"
	"drtmx/internal/mem"
)

// keyFormat has the parts of published blocks and of their router that depend on the
// kind of key.
type keyFormat interface {
	// appendStarts appends the starts of a chunk's sub-models. size is the value of
	// the chunk's size word.
	appendStarts(dst []uint64, starts []index.Key) (b []uint64, size uint64)
	// starts decodes n of them, as views of b.
	starts(dst []index.Key, n int, b []uint64, size uint64) ([]index.Key, bool)
	// appendHead appends the words of a sub-model's block that describe its keys.
	appendHead(dst []uint64, start index.Key, prefix string) []uint64
	// head decodes it, up to word at; false if the sub-model does not begin at start.
	head(b []uint64, start index.Key) (prefix string, at int, ok bool)
	newRouter(starts []index.Key) (KeyRouter, error)
	// tailEntryWords is the size of an entry of a tail list.
	tailEntryWords() int
	// appendTailKeys appends the keys of such an entry; false if they do not fit.
	appendTailKeys(dst []uint64, prefix string, e *TailEntry) ([]uint64, bool)
	// tailKeys decodes them; false if they cannot be.
	tailKeys(b []uint64, prefix string, e *TailEntry) bool
}

func formatOf(kind leaf.Kind) keyFormat {
	if kind == leaf.Strings {
		return stringFormat{}
	}
	return nativeFormat{}
}

// KeyRouter finds the sub-model of a key. It is immutable.
type KeyRouter interface {
	Route(key index.Key) int
	// Start is the first key of sub-model i.
	Start(i int) index.Key
	// Input returns the number from which a sub-model whose keys have a prefix
	// predicts.
	Input(key index.Key, prefix string) uint64
	// Bytes returns the memory that the router takes.
	Bytes() int
}

// nativeFormat stores starts unchanged. A sub-model's block needs no head, because
// the encoding has the start.
type nativeFormat struct{}

func (nativeFormat) appendStarts(dst []uint64, starts []index.Key) ([]uint64, uint64) {
	for _, s := range starts {
		dst = append(dst, s.Num)
	}
	return dst, 0
}

func (nativeFormat) starts(dst []index.Key, n int, b []uint64, _ uint64) ([]index.Key, bool) {
	if n > len(b) {
		return dst, false
	}
	for _, s := range b[:n] {
		dst = append(dst, index.Num(s))
	}
	return dst, true
}

func (nativeFormat) appendHead(dst []uint64, _ index.Key, _ string) []uint64 { return dst }

func (nativeFormat) head(b []uint64, start index.Key) (prefix string, at int, ok bool) {
	return "", subHead, len(b) > subHead+startWord && b[subHead+startWord] == start.Num
}

func (nativeFormat) newRouter(starts []index.Key) (KeyRouter, error) {
	nums := make([]uint64, len(starts))
	for i, s := range starts {
		nums[i] = s.Num
	}
	r, err := NewRouter(nums)
	return numRouter{r}, err
}

// numRouter is a Router of native keys.
type numRouter struct{ r *Router }

func (n numRouter) Route(key index.Key) int              { return n.r.Route(key.Num) }
func (n numRouter) Start(i int) index.Key                { return index.Num(n.r.Start(i)) }
func (n numRouter) Input(key index.Key, _ string) uint64 { return key.Num }
func (n numRouter) Bytes() int                           { return n.r.Bytes() }

// stringFormat stores the end offsets of starts, then their bytes. The block of a
// sub-model has a hash of the start and the prefix of its keys.
type stringFormat struct{}

const (
	stringStart     = subHead
	stringPrefix    = subHead + 1
	stringHeadWords = subHead + 2
)

func (stringFormat) appendStarts(dst []uint64, starts []index.Key) ([]uint64, uint64) {
	var b []byte
	ends := make([]uint64, (len(starts)+1)/2)
	for i, s := range starts {
		b = append(b, s.Str...)
		ends[i/2] |= uint64(len(b)) << (32 * (i % 2))
	}
	return mem.AppendString(append(dst, ends...), mem.String(b)), uint64(len(b))
}

func (stringFormat) starts(dst []index.Key, n int, b []uint64, size uint64) ([]index.Key, bool) {
	at := (n + 1) / 2
	if at > len(b) || size > uint64(len(b)-at)*mem.WordBytes {
		return dst, false
	}
	text, from := mem.WordString(b[at:], int(size)), uint64(0)
	for k := range n {
		end := b[k/2] >> (32 * (k % 2)) & 0xffffffff
		if end < from || end > size {
			return dst, false
		}
		dst = append(dst, index.Str(text[from:end]))
		from = end
	}
	return dst, true
}

func (stringFormat) appendHead(dst []uint64, start index.Key, prefix string) []uint64 {
	return mem.AppendString(append(dst, leaf.Hash(start.Str), uint64(len(prefix))), prefix)
}

func (stringFormat) head(b []uint64, start index.Key) (prefix string, at int, ok bool) {
	if len(b) < stringHeadWords || b[stringStart] != leaf.Hash(start.Str) {
		return "", 0, false
	}
	n := b[stringPrefix]
	if n > index.MaxKeyBytes || n > uint64(len(b)-stringHeadWords)*mem.WordBytes {
		return "", 0, false
	}
	return mem.WordString(b[stringHeadWords:], int(n)), stringHeadWords + (int(n)+mem.WordBytes-1)/mem.WordBytes, true
}

// stringRouter finds the sub-model of a string key: by the digest after the common
// prefix of all starts but the first, which is "", and where digests are equal by the
// starts themselves.
type stringRouter struct {
	prefix string
	top    *Router  // the distinct digests; nil if there is one sub-model
	from   []uint32 // the first start of each digest, and the number of starts
	bytes  string   // all starts
	ends   []uint32
}

func (stringFormat) newRouter(starts []index.Key) (KeyRouter, error) {
	if n := len(starts); n == 0 || n > MaxSubModels {
		return nil, fmt.Errorf("%w: router of %d sub-models", index.ErrCorrupt, n)
	}
	r := &stringRouter{}
	var b []byte
	for i, s := range starts {
		if i == 0 && s.Str != "" || i > 0 && s.Str <= starts[i-1].Str || len(s.Str) > index.MaxKeyBytes {
			return nil, fmt.Errorf("%w: start %d of the sub-models is %q", index.ErrCorrupt, i, s.Str)
		}
		b = append(b, s.Str...)
		r.ends = append(r.ends, uint32(len(b)))
	}
	r.bytes = string(b)
	if len(starts) == 1 {
		return r, nil
	}
	r.prefix = r.start(1)[:leaf.Common(starts[1].Str, starts[len(starts)-1].Str)]
	var digests []uint64
	for i, s := range starts[1:] {
		if d := leaf.DigestAfter(r.prefix, s.Str); i == 0 || d != digests[len(digests)-1] {
			digests = append(digests, d)
			r.from = append(r.from, uint32(i+1))
		}
	}
	r.from = append(r.from, uint32(len(starts)))
	var err error
	r.top, err = NewRouter(digests)
	return r, err
}

func (r *stringRouter) Route(key index.Key) int {
	if r.top == nil {
		return 0
	}
	g := r.top.Route(leaf.DigestAfter(r.prefix, key.Str))
	lo, hi := int(r.from[g]), int(r.from[g+1])
	for lo < hi {
		if mid := int(uint(lo+hi) / 2); r.start(mid) <= key.Str {
			lo = mid + 1
		} else {
			hi = mid
		}
	}
	return lo - 1
}

func (r *stringRouter) start(i int) string {
	from := uint32(0)
	if i > 0 {
		from = r.ends[i-1]
	}
	return r.bytes[from:r.ends[i]]
}

func (r *stringRouter) Start(i int) index.Key { return index.Str(r.start(i)) }

func (r *stringRouter) Input(key index.Key, prefix string) uint64 {
	return leaf.DigestAfter(prefix, key.Str)
}

func (r *stringRouter) Bytes() int {
	n := len(r.bytes) + 4*len(r.ends) + 4*len(r.from)
	if r.top != nil {
		n += r.top.Bytes()
	}
	return n
}
