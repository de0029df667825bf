package tpcc

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"drtmx/internal/cluster"
	"drtmx/rdma"
	"drtmx/rdma/inproc"
	"drtmx/rdma/shm"
	"drtmx/rdma/tcp"
	"drtmx/rdma/verbs"
	"drtmx/server"
	"drtmx/txn"
)

// deviceEnv names the RDMA device to test on.
const deviceEnv = "DRTMX_VERBS_DEVICE"

// fabric is a provider with addresses for data servers.
type fabric struct {
	name      string
	provider  rdma.Provider
	addrs     []string
	checksums bool
}

// fabrics are those of this binary and machine, each with n addresses.
func fabrics(t *testing.T, n int) (all []fabric) {
	t.Helper()
	add := func(f fabric, errs ...error) {
		if err := errors.Join(errs...); err != nil {
			t.Fatalf("%s: %v", f.name, err)
		}
		all = append(all, f)
	}
	named := func(format string) (addrs []string) {
		for i := range n {
			addrs = append(addrs, fmt.Sprintf(format, i))
		}
		return addrs
	}
	add(fabric{name: "inproc", provider: inproc.New(inproc.Options{}), addrs: named("s%d")})
	add(fabric{
		name: "inproc, not in order", addrs: named("s%d"), checksums: true,
		provider: inproc.New(inproc.Options{Faults: inproc.Faults{Scramble: 1}, Seed: 1}),
	})
	p, err := tcp.New(tcp.Options{})
	addrs, err2 := cluster.LoopbackAddrs(n)
	add(fabric{name: "tcp", provider: p, addrs: addrs}, err, err2)
	if !raceEnabled && shm.Available() == nil {
		dir, err := os.MkdirTemp("", "drtmx") // socket paths are short
		t.Cleanup(func() { os.RemoveAll(dir) })
		p, err2 := shm.New(shm.Options{})
		add(fabric{name: "shm", provider: p, addrs: named(filepath.Join(dir, "s%d"))}, err, err2)
	}
	if device := os.Getenv(deviceEnv); verbs.Built && device != "" {
		p, err := verbs.New(verbs.Options{Device: device})
		addrs, err2 := cluster.DeviceAddrs(p, n)
		add(fabric{name: "verbs", provider: p, addrs: addrs}, err, err2)
	}
	return all
}

// engineOver is newEngine over a fabric.
func engineOver(t *testing.T, f *fabric, warehouses int64) *engine {
	t.Helper()
	e := &engine{Cluster: &server.Cluster{}}
	t.Cleanup(func() {
		if err := e.Close(); err != nil {
			t.Error(err)
		}
	})
	for i := range f.addrs {
		s, err := server.New(server.Config{
			Index: i, Addrs: f.addrs, Catalog: Catalog(), Procedures: Procedures(), Provider: f.provider,
			Checksums: f.checksums, MemoryBytes: 256 << 20,
		})
		if err == nil {
			e.Servers = append(e.Servers, s)
			err = s.Start()
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	var err error
	if e.DB, err = txn.Open(t.Context(), txn.Config{Servers: f.addrs, Dial: f.provider.Dial}); err != nil {
		t.Fatal(err)
	}
	e.populate(t, warehouses)
	return e
}

// asked is what one transaction asked of the network.
type asked struct{ rounds, reads, rpcs uint64 }

// asks runs a few transactions, alone and repeatedly, and returns what the last
// of each asked of the network.
func asks(t *testing.T, e *engine) map[string]asked {
	t.Helper()
	sess, err := e.DB.NewSession(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer sess.Close()
	at := func(c TerminalConfig) *Terminal { return NewTerminal(e.DB, sess, e.s, c) }
	client, server := at(modes[0]), at(TerminalConfig{})
	var status OrderStatusOutput
	var paid PaymentOutput
	var level StockLevelOutput
	var placed NewOrderOutput
	got := map[string]asked{}
	for _, c := range []struct {
		name string
		run  func() error
	}{
		{"ORDER-STATUS by number", func() error {
			return client.OrderStatus(t.Context(), &OrderStatusInput{W: 1, D: 1, C: 5}, &status)
		}},
		{"ORDER-STATUS by name", func() error {
			return client.OrderStatus(t.Context(), &OrderStatusInput{W: 2, D: 1, Last: LastName(nil, 7)}, &status)
		}},
		{"STOCK-LEVEL", func() error {
			return client.StockLevel(t.Context(), &StockLevelInput{W: 1, D: 1, Threshold: 15}, &level)
		}},
		{"PAYMENT at the client", func() error {
			return client.Payment(t.Context(), &PaymentInput{W: 1, D: 3, CW: 2, CD: 4, C: 5, Amount: 123}, &paid)
		}},
		{"PAYMENT at the server", func() error {
			return server.Payment(t.Context(), &PaymentInput{W: 1, D: 3, CW: 2, CD: 4, C: 5, Amount: 123}, &paid)
		}},
		{"NEW-ORDER at the client", func() error {
			return client.NewOrder(t.Context(), order(1, 3, 5, NewOrderLine{6, 2, 1}, NewOrderLine{7, 1, 1}), &placed)
		}},
	} {
		var before, after txn.SessionStats
		for range 4 { // what is cached is fetched, locations too
			before = sess.Stats()
			if err := c.run(); err != nil {
				t.Fatalf("%s: %v", c.name, err)
			}
			after = sess.Stats()
		}
		got[c.name] = asked{after.Rounds - before.Rounds, after.Fabric.Reads - before.Fabric.Reads, after.Fabric.RPCs - before.Fabric.RPCs}
	}
	return got
}

// A transaction asks the same of the network whatever carries it, and whether
// READs are in order or not.
func TestFabricsAreAskedTheSame(t *testing.T) {
	var want map[string]asked
	for i, f := range fabrics(t, 2) {
		got := asks(t, engineOver(t, &f, 2))
		if i == 0 {
			want = got
			t.Logf("rounds, READs and RPCs: %v", want)
		}
		for name, w := range want {
			if got[name] != w {
				t.Errorf("%s over %s: rounds, READs and RPCs %v, over inproc %v", name, f.name, got[name], w)
			}
		}
	}
}
