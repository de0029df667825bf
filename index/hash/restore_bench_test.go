package hash

import (
	"fmt"
	"math/bits"
	"syscall"
	"testing"
	"time"

	"drtmx/index"
	"drtmx/internal/block"
	"drtmx/internal/mem"
)

// BenchmarkRestore restores rows whose buckets lie in random order, as the log of
// a bulk load has them: into a table that knows how many there will be, into one
// that grows, and into a plain open-addressing table whose rows are appended to
// one slice. The plain one is the bound: it makes the same random accesses.
func BenchmarkRestore(b *testing.B) {
	const keys, near = 1 << 20, 8
	for _, words := range []int{1, 8} {
		row := make([]uint64, words)
		run := func(name string, restore func(b *testing.B)) {
			b.Run(fmt.Sprintf("%s/%d bytes", name, words*mem.WordBytes), func(b *testing.B) {
				used := -processTime(b)
				for b.Loop() {
					restore(b)
				}
				used += processTime(b)
				b.ReportMetric(float64(used.Nanoseconds())/float64(b.N)/keys, "cpu-ns/key")
			})
		}
		indexed := func(expect bool) func(b *testing.B) {
			return func(b *testing.B) {
				r, err := mem.New(mem.Options{MaxBytes: 1 << 30, SegmentBytes: 4 << 20})
				if err != nil {
					b.Fatal(err)
				}
				s, err := NewServer(block.NewArena(r, block.ArenaOptions{Tick: 1}), Options{RowWords: words})
				if err != nil {
					b.Fatal(err)
				}
				if expect {
					s.Expect(keys)
				}
				for k := range uint64(keys) {
					s.Prefetch(index.Num(k+near), 0)
					row[0] = k
					if err := s.Restore(index.Num(k), row, block.Present(block.NewCSN(1, k+1))); err != nil {
						b.Fatal(err)
					}
				}
			}
		}
		run("expected", indexed(true))
		run("growing", indexed(false))
		run("plain", func(b *testing.B) {
			table, rows := make([]uint64, 1<<bits.Len64(2*keys)), make([]uint64, 0, keys*(words+1))
			for k := range uint64(keys) {
				row[0] = k
				at := hashKey(k) & uint64(len(table)-1)
				for table[at] != 0 {
					if rows[table[at]-1] == k {
						b.Fatal("a key is there twice")
					}
					at = (at + 1) & uint64(len(table)-1)
				}
				table[at] = uint64(len(rows)) + 1
				rows = append(append(rows, k), row...)
			}
		})
	}
}

// processTime is the processor time that the process has used, in user mode and in
// the kernel.
func processTime(tb testing.TB) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		tb.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
