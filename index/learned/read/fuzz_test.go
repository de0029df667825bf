package read

import (
	"testing"

	"drtmx/index"
	"drtmx/index/indextest"
	"drtmx/index/learned"
	"drtmx/index/learned/leaf"
	"drtmx/internal/block"
	"drtmx/internal/mem"
	"drtmx/rdma"
	"drtmx/rdma/inproc"
)

// FuzzLeaf feeds what judges the copies of leaves, fences and rows, of native
// keys and of string keys.
func FuzzLeaf(f *testing.F) {
	native := newRig(f, learned.Options{RowWords: 1, SlotsPerLeaf: 4}, Options{}, inproc.Options{}, true)
	for k := range uint64(20) {
		native.put(k, k)
	}
	strs := newRig(f, learned.Options{Strings: true, RowWords: 40, SlotsPerLeaf: 4}, Options{}, inproc.Options{}, true)
	strs.loadStr(indextest.StringKeys(300), 300, 3)
	var layouts []leaf.Layout
	for _, g := range []*rig{native, strs} {
		lay := g.s.Layout()
		layouts = append(layouts, lay)
		add := func(addr uint64, words int) []uint64 {
			buf := make([]uint64, words)
			g.a.Span(addr, words).CopyOut(buf)
			f.Add(mem.Bytes(buf))
			return buf
		}
		for at := g.s.First(); at != 0; {
			v, ok := lay.View(add(at, lay.LeafWords))
			if !ok {
				f.Fatal("a leaf that is none")
			}
			if at = v.Right(); lay.Kind != leaf.Strings {
				continue
			}
			if addr, words, ok := v.FenceBlock(); ok {
				add(addr, words)
			}
			if p := v.Pointer(0); p != 0 {
				add(p.Addr(), p.Words())
			}
		}
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		words := make([]uint64, len(data)/8)
		for i := range words {
			copy(mem.Bytes(words[i:i+1]), data[8*i:])
		}
		if len(words) < mem.LineBytes/mem.WordBytes { // a READ brings whole lines
			return
		}
		for i := range layouts {
			fuzzLeaf(t, &layouts[i], words)
		}
		_ = block.Header(words[0]).String()
	})
}

func fuzzLeaf(t *testing.T, lay *leaf.Layout, words []uint64) {
	wr := rdma.WR{Status: rdma.StatusOK, Buf: words, Addr: 64}
	_ = accepted(&wr, false)
	if key, row, ok := lay.StrRow(words); ok && (len(key) > index.MaxKeyBytes || len(row) > lay.RowWords) {
		t.Fatalf("key of %d bytes, row of %d words", len(key), len(row))
	}
	judgeStrRow(&wr, lay, false)
	v, ok := lay.View(words)
	if !ok {
		return
	}
	f := finder{c: &Client{}, lay: lay}
	f.judge(&wr)
	if order, ok := v.Order(); ok {
		for _, i := range order {
			_ = v.Keys()[i]
			if !v.InUse(int(i)) {
				t.Fatalf("the order names slot %d, which is free", i)
			}
		}
	}
	if lay.Kind != leaf.Strings {
		for i := range v.Count() {
			_, _, _ = v.Key(i), v.Head(i), v.InUse(i)
		}
		v.Find(words[0])
		return
	}
	for i := range v.Keys() {
		if p := v.Pointer(i); p.Valid() && p.Words()*8 > rdma.MaxReadBytes {
			t.Fatalf("a row of %d words", p.Words())
		}
	}
	if fences, ok := v.Fences(); ok {
		_, _, _ = fences.Below("key"), fences.Above("key"), fences.AppendHigh(nil)
	}
	if _, n, ok := v.FenceBlock(); ok {
		if n > rdma.MaxReadBytes/8 {
			t.Fatalf("fences of %d words", n)
		}
		wr.Buf = make([]uint64, n)
		copy(wr.Buf, words)
		wr.Buf[0] = words[leaf.VersionWord] &^ (3 << 62)
		f.judgeFence(&wr, &v, 64)
		v.FencesApart(64, wr.Buf)
	}
}
