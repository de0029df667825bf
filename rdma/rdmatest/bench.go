package rdmatest

import (
	"context"
	"testing"

	"drtmx/internal/mem"
	"drtmx/rdma"
)

// Benchmark compares a provider with a plain copy of the same memory: one READ
// of 64 bytes per round, sixteen in one round, and a call of 64 bytes.
func Benchmark(b *testing.B, mk func(testing.TB) Fixture) {
	ctx := context.Background()
	r := &rig{TB: b, f: mk(b), ctx: ctx}
	e, m, k := r.server()
	c := r.dial(e)
	const batch, words = 16, 8
	buf := make([]uint64, batch*words)
	b.Run("Copy64", func(b *testing.B) {
		b.SetBytes(words * mem.WordBytes)
		for b.Loop() {
			m.Read(64, buf[:words])
		}
	})
	for _, n := range []int{1, batch} {
		b.Run(map[int]string{1: "Read64", batch: "Read64x16"}[n], func(b *testing.B) {
			b.SetBytes(int64(n) * words * mem.WordBytes)
			b.ReportAllocs()
			var wrs rdma.Batch
			for b.Loop() {
				wrs.Reset()
				for i := range n {
					wrs.Read(k, uint64(64+i*1024), buf[i*words:(i+1)*words])
				}
				if err := rdma.Do(ctx, c, &wrs); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
	b.Run("Call64", func(b *testing.B) {
		b.ReportAllocs()
		req, resp := make([]byte, 64), make([]byte, 64)
		for b.Loop() {
			var err error
			if resp, err = rdma.Call(ctx, c, req, resp); err != nil {
				b.Fatal(err)
			}
		}
	})
}
