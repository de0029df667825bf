package server_test

import (
	"errors"
	"strings"
	"testing"

	"drtmx/rdma"
	"drtmx/rdma/inproc"
	"drtmx/server"
	"drtmx/txn"
)

// TestBlocksWithoutChecksumsAreNotRead: a data server keeps checksums if its provider
// does not read in order. If it keeps none, because that was hidden from it, a client
// that does not read in order is told so, instead of reading blocks that it can never
// accept.
func TestBlocksWithoutChecksumsAreNotRead(t *testing.T) {
	net := inproc.New(inproc.Options{Faults: inproc.Faults{Scramble: 0.5}})
	hidden := struct{ rdma.Provider }{net}
	for _, c := range []struct {
		name      string
		provider  rdma.Provider
		checksums bool
		reads     bool
	}{{"known", net, false, true}, {"hidden", hidden, false, false}, {"asked", hidden, true, true}} {
		t.Run(c.name, func(t *testing.T) {
			cat := vaultCatalog(t)
			s, err := server.New(server.Config{Addrs: []string{c.name}, Catalog: cat, Provider: c.provider, Checksums: c.checksums})
			if err != nil {
				t.Fatal(err)
			}
			defer func() {
				if err := s.Close(); err != nil {
					t.Error(err)
				}
			}()
			if err := s.Start(); err != nil {
				t.Fatal(err)
			}
			db, err := txn.Open(t.Context(), txn.Config{Servers: []string{c.name}, Dial: net.Dial})
			if !c.reads {
				if !errors.Is(err, txn.ErrProtocol) || !strings.Contains(err.Error(), "checksums") {
					t.Fatalf("a server without checksums: %v", err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			defer db.Close()
			ses, err := db.NewSession(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			defer ses.Close()
			v := vaults{catalog: cat}
			for _, name := range vaultTables {
				tab := cat.MustTable(name)
				if err := ses.Update(t.Context(), func(x *txn.Txn) error { return x.Insert(tab, v.key(tab, 1), v.row(tab, 1, 1)) }); err != nil {
					t.Fatal(err)
				}
				view := func() (rpcs uint64) {
					before := ses.Stats().Fabric.RPCs
					if err := ses.View(t.Context(), func(x *txn.Txn) error {
						_, err := x.Get(tab, v.key(tab, 1))
						return err
					}); err != nil {
						t.Errorf("%s: %v", name, err)
					}
					return ses.Stats().Fabric.RPCs - before
				}
				view() // learns the index
				if n := view(); n > 0 {
					t.Errorf("%s: a View sent %d requests", name, n)
				}
			}
		})
	}
}
