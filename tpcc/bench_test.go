package tpcc

import (
	"context"
	"errors"
	"testing"

	"drtmx/internal/rng"
	"drtmx/server"
)

// BenchmarkTransactions runs the transactions of one terminal in an embedded cluster of
// one data server, with warehouses of full size: what the engine itself needs, without
// processes that wait for each other.
func BenchmarkTransactions(b *testing.B) {
	const warehouses = 2
	cl, err := server.Embedded(b.Context(), server.EmbeddedConfig{
		Catalog: Catalog(), Procedures: Procedures(), Servers: 1, MemoryBytes: 8 << 30,
	})
	if err != nil {
		b.Fatal(err)
	}
	defer cl.Close()
	s, err := NewSchema(cl.DB.Catalog())
	if err != nil {
		b.Fatal(err)
	}
	if _, err := Load(b.Context(), cl.DB, LoadConfig{Warehouses: warehouses, Seed: 7, Now: 1e18}); err != nil {
		b.Fatal(err)
	}
	info, err := ReadLoadInfo(b.Context(), cl.DB)
	if err != nil {
		b.Fatal(err)
	}
	sess, err := cl.DB.NewSession(b.Context())
	if err != nil {
		b.Fatal(err)
	}
	defer sess.Close()
	t := NewTerminal(cl.DB, sess, s, TerminalConfig{})
	g := NewInputs(rng.New(31), info, info.RunConstants(rng.New(32)))
	for _, x := range []struct {
		name string
		run  func(ctx context.Context, w int64) error
	}{
		{"NewOrder", run(g.NewOrder, t.NewOrder)},
		{"Payment", run(g.Payment, t.Payment)},
		{"OrderStatus", run(g.OrderStatus, t.OrderStatus)},
		{"StockLevel", run(func(w int64, in *StockLevelInput) { g.StockLevel(w, 1, in) }, t.StockLevel)},
		{"Delivery", run(g.Delivery, t.Delivery)},
	} {
		b.Run(x.name, func(b *testing.B) {
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				if err := x.run(b.Context(), int64(i%warehouses)+1); err != nil && !errors.Is(err, ErrRolledBack) {
					b.Fatal(err)
				}
			}
		})
	}
}

// run is a transaction with drawn inputs.
func run[In, Out any](draw func(int64, *In), do func(context.Context, *In, *Out) error) func(context.Context, int64) error {
	var in In
	var out Out
	return func(ctx context.Context, w int64) error {
		draw(w, &in)
		return do(ctx, &in, &out)
	}
}
