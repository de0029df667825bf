package wal

import (
	"context"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// BenchmarkAppend appends records without waiting for them.
func BenchmarkAppend(b *testing.B) {
	for _, n := range []int{100, 1000} {
		b.Run(fmt.Sprintf("%dB", n), func(b *testing.B) {
			l, err := Open(Options{FS: vfs.Default, Dir: b.TempDir()})
			if err != nil {
				b.Fatal(err)
			}
			l.Start()
			p := make([]byte, n)
			b.ReportAllocs()
			b.SetBytes(int64(n))
			for b.Loop() {
				end, err := l.Append(p)
				if err == nil && end-l.Durable() > 4<<20 {
					b.StopTimer() // the disk's time is another benchmark
					err = l.Wait(context.Background(), end)
					if err == nil {
						err = l.Cut(l.Durable())
					}
					b.StartTimer()
				}
				if err != nil {
					b.Fatal(err)
				}
			}
			if err := l.Close(); err != nil {
				b.Fatal(err)
			}
		})
	}
}

// BenchmarkGroupCommit appends a record and waits for it, in several goroutines,
// beside the rate of writes and syncs that the file system itself does.
func BenchmarkGroupCommit(b *testing.B) {
	const record = 300
	dir := b.TempDir()
	b.Run("bare", func(b *testing.B) {
		f, err := os.Create(dir + "/bare")
		if err != nil {
			b.Fatal(err)
		}
		if _, err := f.Write(make([]byte, 16<<20)); err != nil {
			b.Fatal(err)
		}
		if err := f.Sync(); err != nil {
			b.Fatal(err)
		}
		v, err := vfs.Default.OpenReadWrite(dir+"/bare", vfs.WriteCategoryUnspecified)
		if err != nil {
			b.Fatal(err)
		}
		p := make([]byte, record)
		at := int64(0)
		for b.Loop() {
			if _, err := v.WriteAt(p, at%(16<<20-record)); err != nil {
				b.Fatal(err)
			}
			at += record
			if err := v.SyncData(); err != nil {
				b.Fatal(err)
			}
		}
		b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "syncs/s")
		if err := v.Close(); err != nil {
			b.Fatal(err)
		}
		if err := f.Close(); err != nil {
			b.Fatal(err)
		}
	})
	for _, clients := range []int{1, 8, 64} {
		b.Run(fmt.Sprintf("clients=%d", clients), func(b *testing.B) {
			l, err := Open(Options{FS: vfs.Default, Dir: b.TempDir(), MarkDelay: time.Second})
			if err != nil {
				b.Fatal(err)
			}
			l.Start()
			work := make(chan struct{})
			done := make(chan error)
			for range clients {
				go func() {
					p := make([]byte, record)
					var err error
					for range work {
						end, e := l.Append(p)
						if e == nil {
							e = l.Wait(context.Background(), end)
						}
						if e != nil {
							err = e
						}
					}
					done <- err
				}()
			}
			for b.Loop() {
				work <- struct{}{}
			}
			close(work)
			for range clients {
				if err := <-done; err != nil {
					b.Fatal(err)
				}
			}
			s := l.Stats()
			b.ReportMetric(float64(s.Records)/b.Elapsed().Seconds(), "records/s")
			b.ReportMetric(float64(s.Syncs)/b.Elapsed().Seconds(), "syncs/s")
			b.ReportMetric(float64(s.Records)/float64(max(s.Groups, 1)), "records/group")
			if err := l.Close(); err != nil {
				b.Fatal(err)
			}
		})
	}
}
