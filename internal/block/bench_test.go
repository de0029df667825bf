package block

import (
	"math/rand/v2"
	"testing"

	"drtmx/internal/mem"
)

func benchVaried(b *testing.B) *Varied {
	b.Helper()
	r, err := mem.New(mem.Options{MaxBytes: 4 << 30, Kind: mem.Private})
	if err != nil {
		b.Fatal(err)
	}
	return NewArena(r, ArenaOptions{Tick: 1}).NewVaried(1000)
}

type benchBlock struct {
	addr uint64
	c    Class
}

// BenchmarkAllocFree allocates a block and frees it.
func BenchmarkAllocFree(b *testing.B) {
	v := benchVaried(b)
	for range b.N {
		addr, c, err := v.AllocNear(3)
		if err != nil {
			b.Fatal(err)
		}
		v.Free(addr, c)
	}
}

// BenchmarkAllocChurn replaces random ones of many blocks by blocks of another
// size, as rows do that change size.
func BenchmarkAllocChurn(b *testing.B) {
	v := benchVaried(b)
	r := rand.New(rand.NewPCG(1, 1))
	live := make([]benchBlock, 1<<17)
	for i := range live {
		live[i].c = Class(1 + r.IntN(12))
		live[i].addr, live[i].c, _ = v.AllocNear(live[i].c)
	}
	b.ResetTimer()
	for range b.N {
		l := &live[r.Uint32()%uint32(len(live))]
		addr, c, err := v.AllocNear(Class(1 + r.Uint32()%12))
		if err != nil {
			b.Fatal(err)
		}
		v.Free(l.addr, l.c)
		l.addr, l.c = addr, c
	}
}

// BenchmarkAllocSame replaces random ones of many blocks by blocks of the same size.
func BenchmarkAllocSame(b *testing.B) {
	v := benchVaried(b)
	r := rand.New(rand.NewPCG(1, 1))
	live := make([]uint64, 1<<17)
	for i := range live {
		live[i], _ = v.Alloc(3)
	}
	b.ResetTimer()
	for range b.N {
		i := r.Uint32() % uint32(len(live))
		addr, err := v.Alloc(3)
		if err != nil {
			b.Fatal(err)
		}
		v.Free(live[i], 3)
		live[i] = addr
	}
}

// BenchmarkAllocNew allocates blocks of new memory.
func BenchmarkAllocNew(b *testing.B) {
	v := benchVaried(b)
	for i := range b.N {
		if i%(1<<23) == 1<<23-1 {
			b.StopTimer()
			v = benchVaried(b)
			b.StartTimer()
		}
		if _, err := v.Alloc(3); err != nil {
			b.Fatal(err)
		}
	}
}
