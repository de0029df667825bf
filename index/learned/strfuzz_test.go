package learned

import (
	"testing"

	"drtmx/index"
	"drtmx/index/indextest"
	"drtmx/index/learned/leaf"
	"drtmx/index/learned/model"
	"drtmx/internal/mem"
	"drtmx/rdma"
	"drtmx/rdma/inproc"
)

// FuzzDecodeStrings feeds all decoders of what an index of string keys
// publishes: directory, sub-models, leaves, fences and rows.
func FuzzDecodeStrings(f *testing.F) {
	g := newRig(f, Options{Strings: true, RowWords: 40, SlotsPerLeaf: 4, LeavesPerSubModel: 4}, ClientOptions{}, inproc.Options{}, true)
	g.loadStr(indextest.StringKeys(300), 300, 3)
	g.train()
	g.refresh()
	add := func(addr uint64, words int) []uint64 {
		buf := make([]uint64, words)
		g.a.Span(addr, words).CopyOut(buf)
		f.Add(mem.Bytes(buf))
		return buf
	}
	root, err := decodeRoot(g.s.Root(), add(g.s.Root(), rootWords))
	if err != nil {
		f.Fatal(err)
	}
	h := g.c.cur.Load()
	add(root.gen, root.genWords)
	add(h.gen.chunks[0].addr, h.gen.chunks[0].words)
	for i := range h.subs {
		p := pointer(h.subs[i].pointer.Load())
		add(p.addr(), p.words())
	}
	for leaf := root.first; leaf != 0; {
		v, ok := root.lay.View(add(leaf, root.lay.LeafWords))
		if !ok {
			f.Fatal("a leaf that is none")
		}
		if addr, words, ok := v.FenceBlock(); ok {
			add(addr, words)
		}
		if p := v.Pointer(0); p != 0 {
			add(p.Addr(), p.Words())
		}
		leaf = v.Right()
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		words := make([]uint64, len(data)/8)
		for i := range words {
			copy(mem.Bytes(words[i:i+1]), data[8*i:])
		}
		if len(words) < lineWords { // a READ brings whole lines
			return
		}
		fuzzDirectory(t, &root, words)
		fuzzBlocks(t, g.c, h, words)
	})
}

func fuzzDirectory(t *testing.T, root *rootBlock, words []uint64) {
	r := *root
	if d, err := decodeRoot(64, words); err == nil && d.strings() && d.lay.LeafWords > 1<<12 {
		t.Fatalf("%+v", d)
	}
	if len(words) <= chunkCount {
		return
	}
	r.number = words[genNumber]
	_, _ = decodeGen(&r, words)
	gb := genBlock{subs: int(words[chunkCount]&0xffffffff%chunkSubs) + 1}
	r.number = words[chunkNumber] >> 32
	starts, pointers, err := decodeStrChunk(&r, &gb, 0, words, nil)
	if err != nil {
		return
	}
	if len(starts) != gb.subs || len(pointers) != gb.subs {
		t.Fatalf("%d starts and %d pointers of %d", len(starts), len(pointers), gb.subs)
	}
	router, err := newStrRouter(starts)
	if err != nil {
		return
	}
	for i, s := range starts {
		if router.Route(s) != i || router.Start(i) != s {
			t.Fatalf("start %d is routed to %d", i, router.Route(s))
		}
	}
}

func fuzzBlocks(t *testing.T, c *Client, h *cache, words []uint64) {
	lay := &h.root.lay
	var s model.SubModel
	for i := range h.subs {
		if head, err := decodeStrSub(lay.ID, h.strs.Start(i), words, &s); err == nil {
			p := s.Predict(leaf.DigestAfter(head.prefix, "key"))
			if p.Leaf < 0 || p.Leaf >= s.Leaves() || len(head.prefix) > index.MaxKeyBytes {
				t.Fatalf("%+v %+v", head, p)
			}
		}
	}
	fd := finder{c: c, h: h, lay: lay}
	wr := rdma.WR{Status: rdma.StatusOK, Buf: words, Addr: 64}
	if key, row, ok := lay.StrRow(words); ok && (len(key) > index.MaxKeyBytes || len(row) > lay.RowWords) {
		t.Fatalf("key of %d bytes, row of %d words", len(key), len(row))
	}
	judgeStrRow(&wr, lay, false)
	v, ok := lay.View(words)
	if !ok {
		return
	}
	for i := range v.Keys() {
		if p := v.Pointer(i); p.Valid() && p.Words()*8 > rdma.MaxReadBytes {
			t.Fatalf("a row of %d words", p.Words())
		}
	}
	if f, ok := v.Fences(); ok {
		_, _, _ = f.Below("key"), f.Above("key"), f.AppendHigh(nil)
	}
	if _, n, ok := v.FenceBlock(); ok {
		if n > rdma.MaxReadBytes/8 {
			t.Fatalf("fences of %d words", n)
		}
		wr.Buf = make([]uint64, n)
		copy(wr.Buf, words)
		wr.Buf[0] = words[5] &^ (3 << 62)
		fd.judgeFence(&wr, &v, 64)
		v.FencesApart(64, wr.Buf)
	}
	fd.judge(&wr)
}
