package image_test

import (
	"context"
	"fmt"
	"syscall"
	"testing"
	"time"

	"drtmx/index"
	"drtmx/index/hash"
	"drtmx/index/learned"
	"drtmx/internal/block"
	"drtmx/internal/image"
	"drtmx/internal/mem"
	"drtmx/internal/rng"

	"github.com/cockroachdb/pebble/v2/vfs"
)

func newArena(tb testing.TB) *block.Arena {
	r, err := mem.New(mem.Options{MaxBytes: 2 << 30, SegmentBytes: 4 << 20})
	if err != nil {
		tb.Fatal(err)
	}
	return block.NewArena(r, block.ArenaOptions{Tick: 1})
}

var engines = []struct {
	name string
	make func(a *block.Arena, words int) (index.Server, error)
	strs bool
}{
	{"hash", func(a *block.Arena, words int) (index.Server, error) {
		return hash.NewServer(a, hash.Options{RowWords: words})
	}, false},
	{"ordered", func(a *block.Arena, words int) (index.Server, error) {
		return learned.NewServer(a, learned.Options{RowWords: words})
	}, false},
	{"hash of strings", func(a *block.Arena, words int) (index.Server, error) {
		return hash.NewServer(a, hash.Options{RowWords: words, Strings: true})
	}, true},
	{"ordered strings", func(a *block.Arena, words int) (index.Server, error) {
		return learned.NewServer(a, learned.Options{RowWords: words, Strings: true})
	}, true},
}

// BenchmarkRecover reads a checkpoint of an index and fills an empty index with
// it, on one core.
func BenchmarkRecover(b *testing.B) {
	const keys = 1 << 20
	for _, eng := range engines {
		for _, words := range []int{1, 8} {
			b.Run(fmt.Sprintf("%s/%d bytes", eng.name, 8*words), func(b *testing.B) {
				fs := vfs.NewMem()
				write(b, fs, fill(b, eng.make, eng.strs, keys, words), eng.strs)
				b.ReportAllocs()
				used := time.Duration(0)
				for b.Loop() {
					b.StopTimer()
					s, err := eng.make(newArena(b), words)
					if err != nil {
						b.Fatal(err)
					}
					b.StartTimer()
					used -= processorTime(b)
					if err := recoverIndex(fs, s); err != nil {
						b.Fatal(err)
					}
					used += processorTime(b)
					if got := s.Stats().Rows; got != keys {
						b.Fatalf("%d rows, want %d", got, keys)
					}
				}
				b.ReportMetric(float64(used.Nanoseconds())/1e3/float64(b.N)/keys, "cpu-us/key")
			})
		}
	}
}

// processorTime is what the process has used, in user mode and in the kernel: on a
// busy machine it says more than elapsed time.
func processorTime(tb testing.TB) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		tb.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

func fill(b *testing.B, make_ func(*block.Arena, int) (index.Server, error), strs bool, keys uint64, words int) index.Server {
	b.Helper()
	s, err := make_(newArena(b), words)
	if err != nil {
		b.Fatal(err)
	}
	r, row := rng.New(1), make([]uint64, words)
	for k := range keys {
		row[0] = r.Uint64()
		key := index.Num(k * 3)
		if strs {
			key = index.Str(fmt.Sprintf("user%016d", k*3))
		}
		if err := s.Load(key, row, block.Present(block.NewCSN(1, k+1))); err != nil {
			b.Fatal(err)
		}
	}
	return s
}

func write(b *testing.B, fs vfs.FS, s index.Server, strs bool) {
	b.Helper()
	ctx := context.Background()
	w, err := image.Create(fs, "", image.Info{}, image.Options{})
	if err == nil {
		err = w.Index(ctx, 0, 0, strs)
	}
	var at index.Place
	for more := err == nil; more && err == nil; {
		more = s.Visit(&at, 4096, w.Row)
		err = w.Flush(ctx)
	}
	if err == nil {
		_, _, err = w.Finish(ctx)
	}
	if err != nil {
		b.Fatal(err)
	}
}

func recoverIndex(fs vfs.FS, s index.Server) error {
	f, err := image.Open(fs, image.Name(0))
	if err != nil {
		return err
	}
	s.Expect(f.Rows)
	return f.Read(0, 0, func(e *index.Entry) error { return s.Restore(e.Key, e.Row, e.Header) })
}
