package model

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"drtmx/index"
	"drtmx/index/learned/leaf"
	"drtmx/internal/mem"
)

// sample is an index of two chunks as published: the root, the starts and
// pointers of its sub-models, and one sub-model.
type sample struct {
	root     Root
	gen      Generation
	starts   []index.Key
	pointers []Pointer
	sub      SubModel
	head     SubHead
}

// blocks are those of the sample: root, generation, chunks, sub-model.
func (s *sample) blocks() [][]uint64 {
	whole := func(body []uint64) []uint64 {
		b := append([]uint64{1, 2}, body...)
		return append(b, make([]uint64, lines(len(b))*lineWords-len(b))...)
	}
	bs := [][]uint64{whole(s.root.Body(nil)), whole(s.gen.Body(nil, s.root.Layout.ID))}
	for i := range s.gen.Chunks {
		from, to := i*ChunkSubs, i*ChunkSubs+s.gen.ChunkLen(i)
		bs = append(bs, whole(s.root.ChunkBody(nil, &s.gen, i, s.pointers[from:to], s.starts[from:to])))
	}
	return append(bs, whole(s.root.SubBody(nil, &s.head, s.starts[0], &s.sub)))
}

const sampleRoot = 4096

func newSample(tb testing.TB, kind leaf.Kind) *sample {
	lay, err := leaf.NewLayout(IndexID(sampleRoot), kind, 4, 8)
	if err != nil {
		tb.Fatal(err)
	}
	s := &sample{root: NewRoot(lay, 1<<20)}
	s.root.Gen, s.root.Number = NewPointer(8192, 16), 7
	s.gen = Generation{Number: 7, Subs: ChunkSubs + 3, Chunks: []Pointer{NewPointer(64, 8), NewPointer(640, 8)}}
	for i := range s.gen.Subs {
		key := index.Num(uint64(i) * 10)
		if kind == leaf.Strings {
			key = index.Str(strings.Repeat("p", min(i, 30)) + fmt.Sprintf("%06d", i))
		}
		s.starts, s.pointers = append(s.starts, key), append(s.pointers, NewPointer(uint64(i+1)*64, 8))
	}
	s.starts[0] = index.Key{}
	tr, err := NewTrainer(Options{})
	if err != nil {
		tb.Fatal(err)
	}
	tr.Begin(0)
	for i := range uint64(20) {
		tr.Add(i*i, uint32(100+i), nil)
	}
	if _, err := tr.Train(&s.sub, 3); err != nil {
		tb.Fatal(err)
	}
	s.head = SubHead{Version: 3, Low: 100, High: 119}
	if kind == leaf.Strings {
		s.head.Prefix = "a prefix"
	}
	return s
}

// TestPublished: what is written is read, for both kinds of key.
func TestPublished(t *testing.T) {
	for _, kind := range []leaf.Kind{leaf.Apart, leaf.Strings} {
		s := newSample(t, kind)
		bs := s.blocks()
		root, err := RootOf(sampleRoot, bs[0])
		if err != nil || root != s.root || NumberOf(bs[0]) != s.root.Number {
			t.Fatalf("root %+v, %v", root, err)
		}
		gen, err := GenerationOf(&root, bs[1])
		if err != nil || gen.Subs != s.gen.Subs || !slices.Equal(gen.Chunks, s.gen.Chunks) {
			t.Fatalf("generation %+v, %v", gen, err)
		}
		chunks := bs[2:]
		d, pointers, err := NewDirectory(&root, gen, func(Pointer) ([]uint64, error) {
			b := chunks[0]
			chunks = chunks[1:]
			return b, nil
		})
		if err != nil || len(pointers) != gen.Subs {
			t.Fatalf("directory of %d sub-models, %v", len(pointers), err)
		}
		for i, p := range pointers {
			if d.Start(i) != s.starts[i] || d.Route(s.starts[i]) != i || Pointer(p) != s.pointers[i] || d.Same(&d, i) != i {
				t.Fatalf("sub-model %d from %v", i, d.Start(i))
			}
			if chunk, word := d.PointerAt(i); bs[2+slices.Index(gen.Chunks, chunk)][word] != p {
				t.Fatalf("pointer %d is not at word %d", i, word)
			}
		}
		var sub SubModel
		h, err := d.Sub(0, bs[4], &sub)
		if err != nil || h.Version != 3 || h.Low != 100 || h.High != 119 || h.Prefix != s.head.Prefix || sub.Leaves() != s.sub.Leaves() {
			t.Fatalf("sub-model %+v of %d leaves, %v", h, sub.Leaves(), err)
		}
		if _, err := d.Sub(1, bs[4], &sub); !errors.Is(err, index.ErrCorrupt) {
			t.Errorf("a sub-model in place of another: %v", err)
		}
	}
}

// FuzzPublished feeds the decoders of everything that is published but for
// leaves.
func FuzzPublished(f *testing.F) {
	var samples []*sample
	for _, kind := range []leaf.Kind{leaf.Apart, leaf.Strings} {
		s := newSample(f, kind)
		samples = append(samples, s)
		for _, b := range s.blocks() {
			f.Add(mem.Bytes(b))
		}
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		words := wordsOf(data)
		if len(words) < lineWords { // a READ brings whole lines
			return
		}
		if r, err := RootOf(sampleRoot, words); err == nil && (r.Layout.LeafWords <= 0 || r.Layout.LeafWords > 1<<14) {
			t.Fatalf("%+v", r)
		}
		if p := Pointer(words[0]); p.Valid() && (!ValidAddr(p.Addr()) || p.Words() > subWordsMax) {
			t.Fatalf("pointer %#x", words[0])
		}
		for _, s := range samples {
			fuzzSample(t, s, words)
		}
	})
}

func fuzzSample(t *testing.T, s *sample, words []uint64) {
	root := s.root
	root.Number = words[genNumber]
	_, _ = GenerationOf(&root, words)
	g := Generation{Number: words[chunkNumber] >> 32, Subs: int(words[chunkCount]&0xffffffff%ChunkSubs) + 1}
	if starts, pointers, err := root.chunk(&g, 0, words, nil); err == nil {
		if len(starts) != g.Subs || len(pointers) != g.Subs {
			t.Fatalf("%d starts and %d pointers of %d", len(starts), len(pointers), g.Subs)
		}
		if router, err := root.RouterOf(starts); err == nil {
			for i, k := range starts {
				if router.Route(k) != i || router.Start(i) != k {
					t.Fatalf("start %d is routed to %d", i, router.Route(k))
				}
			}
		}
	}
	var m SubModel
	for _, start := range []index.Key{s.starts[0], index.Num(words[subHead+startWord])} {
		if h, err := root.sub(start, words, &m); err == nil {
			p := m.Predict(words[0])
			if p.Leaf < 0 || p.Leaf >= m.Leaves() || len(h.Prefix) > index.MaxKeyBytes {
				t.Fatalf("%+v %+v", h, p)
			}
		}
	}
}
