package tpcc

import (
	"errors"
	"testing"

	"drtmx/internal/rng"
	"drtmx/server"
)

func BenchmarkTransactions(b *testing.B) {
	cl, err := server.Embedded(b.Context(), server.EmbeddedConfig{Catalog: Catalog(), Procedures: Procedures(), Servers: 1})
	if err != nil {
		b.Fatal(err)
	}
	defer cl.Close()
	s, _ := NewSchema(cl.DB.Catalog())
	if _, err := Load(b.Context(), cl.DB, LoadConfig{Warehouses: 1, Seed: 7, Scale: FullScale(), Now: 1e18}); err != nil {
		b.Fatal(err)
	}
	info, err := ReadLoadInfo(b.Context(), cl.DB)
	if err != nil {
		b.Fatal(err)
	}
	sess, _ := cl.DB.NewSession(b.Context())
	defer sess.Close()
	st := rng.New(1)
	in := NewInputs(st, info, info.RunConstants(st))
	t := NewTerminal(cl.DB, sess, s, TerminalConfig{})
	var no NewOrderInput
	var noOut NewOrderOutput
	var os OrderStatusInput
	var osOut OrderStatusOutput
	b.Run("NewOrder", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			in.NewOrder(1, &no)
			if err := t.NewOrder(b.Context(), &no, &noOut); err != nil && !errors.Is(err, ErrRolledBack) {
				b.Fatal(err)
			}
		}
	})
	b.Run("OrderStatus", func(b *testing.B) {
		b.ReportAllocs()
		before := sess.Stats()
		for b.Loop() {
			in.OrderStatus(1, &os)
			if err := t.OrderStatus(b.Context(), &os, &osOut); err != nil {
				b.Fatal(err)
			}
		}
		after := sess.Stats()
		b.ReportMetric(float64(after.Rounds-before.Rounds)/float64(b.N), "rounds/op")
		b.ReportMetric(float64(after.Fabric.Reads-before.Fabric.Reads)/float64(b.N), "READs/op")
	})
}
