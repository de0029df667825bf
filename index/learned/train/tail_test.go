package train

import (
	"slices"
	"testing"
	"time"

	"drtmx/index"
	"drtmx/index/learned/leaf"
	"drtmx/index/learned/model"
	"drtmx/internal/block"
	"drtmx/internal/mem"
)

// lineOfLeaves are leaves of one key each, in ascending order. New ones are split off at
// the end.
type lineOfLeaves struct {
	lay  leaf.Layout
	lows []uint64
	t    *Trainer
}

func (l *lineOfLeaves) addr(i int) uint64   { return l.lay.LeafAddr(uint32(i + 1)) }
func (l *lineOfLeaves) Layout() leaf.Layout { return l.lay }
func (l *lineOfLeaves) First() uint64       { return l.addr(0) }
func (l *lineOfLeaves) Inner() uint64       { return 0 }
func (l *lineOfLeaves) Leaves() uint64      { return uint64(len(l.lows)) }
func (l *lineOfLeaves) Tidy(int) bool       { return false }

func (l *lineOfLeaves) Walk(from index.Key, f func(low index.Key, leaf uint64) bool) {
	i, _ := slices.BinarySearch(l.lows, from.Num+1)
	for i = max(i-1, 0); i < len(l.lows) && f(index.Num(l.lows[i]), l.addr(i)); i++ {
	}
}

func (l *lineOfLeaves) Keys(addr uint64, dst []uint64) ([]uint64, int, bool) {
	return append(dst, l.lows[l.lay.ALN(addr)-1]), 0, true
}

// split splits off n leaves.
func (l *lineOfLeaves) split(n int) {
	for range n {
		low := uint64(len(l.lows)) * 10
		l.lows = append(l.lows, low)
		if l.t != nil {
			l.t.Changed(index.Num(low), index.Key{}, false, l.addr(len(l.lows)-1), true)
		}
	}
}

// TestFullListsAreNotPublished: more leaves are split off than a tail list holds after the
// last sub-model of a generation was trained, and before the generation is published. It is
// trained again, because readers would find only the newest of the leaves that it lacks.
func TestFullListsAreNotPublished(t *testing.T) {
	region, err := mem.New(mem.Options{})
	if err != nil {
		t.Fatal(err)
	}
	a := block.NewArena(region, block.ArenaOptions{Tick: 1})
	published := a.NewSized()
	root, err := published.Alloc(model.RootWords * mem.WordBytes)
	if err != nil {
		t.Fatal(err)
	}
	lay, err := leaf.NewLayout(model.IndexID(root), leaf.Inline, 2, 8)
	if err != nil {
		t.Fatal(err)
	}
	l := &lineOfLeaves{lay: lay}
	l.split(100)
	tr, err := New(Options{Arena: a, Mem: published, Root: root, Tree: l, Family: model.PLR, LeavesPerSubModel: 16, RetrainInterval: time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	l.t = tr
	now := time.Duration(0)
	turn := func() {
		now += time.Second
		tr.Maintain(now, nil)
	}
	for tr.gen == nil {
		turn()
	}
	l.split(60) // hot, and too large
	for tr.next == nil || tr.next.done < len(tr.next.subs) {
		turn()
	}
	entries := tr.root.TailEntries()
	l.split(2 * int(entries))
	for old := tr.gen; tr.gen == old; {
		turn()
	}
	if lacks := tr.gen.subs[len(tr.gen.subs)-1].lacks(); lacks >= entries/tailShare {
		t.Errorf("published with %d changes that the models lack, of a list of %d", lacks, entries)
	}
}
