package learned

import (
	"testing"

	"drtmx/index"
	"drtmx/index/indextest"
	"drtmx/internal/block"
)

// TestSetHint: a hint is replaced only where the row is the one that was seen, and not locked; and the row
// keeps its header.
func TestSetHint(t *testing.T) {
	for _, v := range indextest.Variants() {
		t.Run(v.Name, func(t *testing.T) { setsHints(t, v) })
	}
}

func setsHints(t *testing.T, v indextest.Variant) {
	_, s := variantServer(t, v, 0, 0)
	for k := range uint64(100) {
		if err := s.Load(index.Num(k), []uint64{0}, block.Present(block.CSN(k+1))); err != nil {
			t.Fatal(err)
		}
	}
	at := func(k uint64) index.GetResult { return s.Get(index.Num(k), nil) }
	if was := at(7); !s.SetHint(index.Num(7), was.Header, 99) {
		t.Error("not set")
	} else if is := at(7); is.Row[0] != 99 || is.Header != was.Header {
		t.Errorf("%d with header %v, want 99 with %v", is.Row[0], is.Header, was.Header)
	}
	if s.SetHint(index.Num(8), at(7).Header, 99) || at(8).Row[0] != 0 {
		t.Error("set under another header")
	}
	if s.SetHint(index.Num(1000), at(7).Header, 99) {
		t.Error("set without a row")
	}
	was := at(9)
	h, err := s.LockWrite(1, index.Num(9), 0)
	if err != nil {
		t.Fatal(err)
	}
	if s.SetHint(index.Num(9), was.Header, 99) {
		t.Error("set while the row is locked")
	}
	s.Release(h)
	if err := s.Check(); err != nil {
		t.Error(err)
	}
}
