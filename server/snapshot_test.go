package server_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"drtmx/internal/clock"
	ports "drtmx/internal/cluster"
	"drtmx/internal/testaddr"
	"drtmx/internal/testseed"
	"drtmx/internal/wire"
	"drtmx/rdma"
	"drtmx/rdma/inproc"
	"drtmx/rdma/shm"
	"drtmx/rdma/tcp"
	"drtmx/rdma/verbs"
	"drtmx/server"
	"drtmx/tables"
	"drtmx/txn"
)

// vaults is a bank whose accounts lie in tables of every kind. Money moves only
// within a table, so the total of each stays what it was.
type vaults struct {
	catalog *tables.Catalog
	fabric  vaultFabric
	servers []*server.Server
	db      *txn.DB
	n       int // accounts of a table
}

const vaultBalance = 100

var vaultTables = []string{"hash", "tree", "tree_wide", "hash_strings", "tree_strings"}

func vaultCatalog(t testing.TB) *tables.Catalog {
	t.Helper()
	var defs []tables.Def
	for _, name := range vaultTables {
		d := tables.Def{
			Name: name, Primary: tables.Ordered, Partition: tables.Partitioning{Kind: tables.ByHash},
			Columns: []tables.Column{{Name: "balance", Type: tables.Int64}},
		}
		if strings.HasPrefix(name, "hash") {
			d.Primary = tables.Hash
		}
		switch {
		case strings.HasSuffix(name, "strings"):
			d.Key = tables.StringKey
			d.Columns = append(d.Columns, tables.Column{Name: "padding", Type: tables.Bytes})
		case strings.HasSuffix(name, "wide"):
			d.Columns = append(d.Columns, tables.Column{Name: "padding", Type: tables.Text, Size: 600})
		}
		defs = append(defs, d)
	}
	c, err := tables.NewCatalog(defs...)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

type vaultFabric struct {
	name     string
	provider rdma.Provider
	addrs    func(n int) []string
	hostile  bool
}

// vaultFabrics are all fabrics that work in one process, and one that keeps no
// order. verbs is one of them if there is a device.
func vaultFabrics(t *testing.T) []vaultFabric {
	named := func(prefix string) func(int) []string {
		return func(n int) (all []string) {
			for i := range n {
				all = append(all, fmt.Sprintf("%s%d", prefix, i))
			}
			return all
		}
	}
	hostile := inproc.New(inproc.Options{Faults: inproc.Faults{Scramble: 0.2, Reorder: 0.3, Defer: 0.3, Delay: 0.01}})
	fabrics := []vaultFabric{
		{"inproc", inproc.New(inproc.Options{}), named("vault-"), false},
		{"inproc without order", hostile, named("vault-"), true},
	}
	if local, err := shm.New(shm.Options{}); err == nil {
		fabrics = append(fabrics, vaultFabric{"shm", local, named(fmt.Sprintf("@drtmx-vault-%d-%s-", os.Getpid(), strings.ReplaceAll(t.Name(), "/", "-"))), false})
	} else {
		t.Logf("without shm: %v", err)
	}
	if device := os.Getenv(deviceEnv); verbs.Built && device != "" {
		remote, err := verbs.New(verbs.Options{Device: device})
		if err != nil {
			t.Fatal(err)
		}
		fabrics = append(fabrics, vaultFabric{"verbs", remote, func(n int) []string {
			addrs, err := ports.DeviceAddrs(remote, n)
			if err != nil {
				t.Fatal(err)
			}
			return addrs
		}, false})
	}
	p, err := tcp.New(tcp.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return append(fabrics, vaultFabric{"tcp", p, func(n int) (all []string) {
		for range n {
			all = append(all, testaddr.Free(t))
		}
		return all
	}, false})
}

// startVaults starts servers with n accounts in each table.
func startVaults(t *testing.T, f vaultFabric, servers, n int, change func(*server.Config)) *vaults {
	t.Helper()
	v := &vaults{catalog: vaultCatalog(t), fabric: f, n: n}
	addrs := f.addrs(servers)
	for i := range addrs {
		c := server.Config{Index: i, Addrs: addrs, Catalog: v.catalog, Provider: f.provider, MemoryBytes: 1 << 28, Retain: testseed.Patience()}
		if change != nil {
			change(&c)
		}
		s, err := server.New(c)
		testseed.SkipUnshared(t, err)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := s.Close(); err != nil {
				t.Error(err)
			}
		})
		if err := s.Start(); err != nil {
			t.Fatal(err)
		}
		v.servers = append(v.servers, s)
	}
	v.db = v.open(t)
	t.Cleanup(func() { // before the servers are closed
		v.db.Close()
		for _, s := range v.servers {
			if err := s.Check(); err != nil {
				t.Error(err)
			}
		}
	})
	for _, name := range vaultTables {
		tab := v.table(name)
		for at := 0; at < n; at += 100 {
			if err := v.db.Update(t.Context(), func(x *txn.Txn) error {
				for i := at; i < min(at+100, n); i++ {
					if err := x.Insert(tab, v.key(tab, i), v.row(tab, vaultBalance, i)); err != nil {
						return err
					}
				}
				return nil
			}); err != nil {
				t.Fatal(err)
			}
		}
	}
	return v
}

func (v *vaults) open(t testing.TB) *txn.DB {
	t.Helper()
	db, err := txn.Open(t.Context(), txn.Config{
		Servers: addrsOf(v.servers), AllServers: true, Dial: v.fabric.provider.Dial, Retry: txn.Retry{Patience: testseed.Patience()},
	})
	if err != nil {
		t.Fatal(err)
	}
	return db
}

func addrsOf(servers []*server.Server) (all []string) {
	for _, s := range servers {
		all = append(all, s.Addr())
	}
	return all
}

func (v *vaults) table(name string) *tables.Table { return v.catalog.MustTable(name) }

func (v *vaults) key(tab *tables.Table, i int) tables.Key {
	if tab.Def().Key == tables.StringKey {
		return tables.Str(fmt.Sprintf("account-%06d", i))
	}
	return tables.Num(uint64(i))
}

// row has padding whose length depends on size, if rows vary, so that they move.
func (v *vaults) row(tab *tables.Table, balance int64, size int) tables.Row {
	row := tab.NewRow()
	row.SetInt(tab.Field("balance"), balance)
	if _, ok := tab.Lookup("padding"); ok && tab.Def().Key == tables.StringKey {
		row.SetBytes(tab.Field("padding"), make([]byte, size*37%3000))
	}
	return row
}

// transfer moves money between two accounts. Now and then it empties an account
// and deletes it, or opens one again.
func (v *vaults) transfer(ctx context.Context, s *txn.Session, tab *tables.Table, rng *rand.Rand) error {
	a, b := rng.IntN(v.n), rng.IntN(v.n)
	if a == b {
		return nil
	}
	amount, size, all := 1+rng.Int64N(5), rng.IntN(200), rng.IntN(20) == 0
	balance := tab.Field("balance")
	return s.Update(ctx, func(x *txn.Txn) error {
		var have [2]int64
		for i, k := range []int{a, b} {
			row, err := x.Get(tab, v.key(tab, k))
			if err == nil {
				have[i] = row.Int(balance)
			} else if !errors.Is(err, txn.ErrNotFound) {
				return err
			}
		}
		move := amount
		if all {
			move = have[0]
		}
		for i, k := range []int{a, b} {
			to := have[i] - move
			if i == 1 {
				to = have[i] + move
			}
			var err error
			if to == 0 && have[i] != 0 {
				err = x.Delete(tab, v.key(tab, k))
			} else if to != 0 {
				err = x.Put(tab, v.key(tab, k), v.row(tab, to, size))
			}
			if err != nil {
				return err
			}
		}
		return nil
	})
}

// total is the sum of the accounts of a table, and their number. It gets those
// of a hash table one by one.
func (v *vaults) total(x *txn.Txn, tab *tables.Table) (sum int64, rows int, err error) {
	balance := tab.Field("balance")
	if tab.Def().Primary == tables.Hash {
		var gets []*txn.QueuedGet
		for i := range v.n {
			gets = append(gets, x.QueueGet(tab, v.key(tab, i)))
		}
		for _, g := range gets {
			row, err := g.Row()
			switch {
			case errors.Is(err, txn.ErrNotFound):
			case err != nil:
				return 0, 0, err
			default:
				sum, rows = sum+row.Int(balance), rows+1
			}
		}
		return sum, rows, nil
	}
	for e, err := range x.Scan(tab.Primary(), tables.First, tables.Last) {
		if err != nil {
			return 0, 0, err
		}
		sum, rows = sum+e.Row.Int(balance), rows+1
	}
	return sum, rows, nil
}

// answerMax is how long a snapshot waits for a server's answer before it chooses its
// time without it.
const answerMax = 10 * clock.TickLength

// TestSnapshotsBesideWriters: the total of every table is right in each
// snapshot, whatever writers do, and no snapshot is retried.
func TestSnapshotsBesideWriters(t *testing.T) {
	t.Parallel()
	for _, f := range vaultFabrics(t) {
		t.Run(f.name, func(t *testing.T) {
			seed := testseed.Of(t)
			v := startVaults(t, f, 2, 300, func(c *server.Config) { c.Retain = time.Minute })
			ctx, cancel := context.WithCancel(t.Context())
			var wg sync.WaitGroup
			var written atomic.Int64
			for w := range 4 {
				s, err := v.db.NewSession(ctx)
				if err != nil {
					t.Fatal(err)
				}
				rng := rand.New(rand.NewPCG(seed, uint64(w)))
				wg.Go(func() {
					defer s.Close()
					for ctx.Err() == nil {
						if err := v.transfer(ctx, s, v.table(vaultTables[rng.IntN(len(vaultTables))]), rng); err != nil {
							if ctx.Err() == nil && !errors.Is(err, txn.ErrConflict) {
								t.Error(err)
							}
							continue
						}
						written.Add(1)
					}
				})
			}
			defer func() { cancel(); wg.Wait() }()
			s, err := v.db.NewSession(ctx)
			if err != nil {
				t.Fatal(err)
			}
			defer s.Close()
			taken := 0
			for end := time.Now().Add(simTime(t, 1500*time.Millisecond)); time.Now().Before(end) || taken < 3; taken++ {
				var opts []txn.SnapshotOption
				if taken%3 == 2 {
					opts = append(opts, txn.Staleness(time.Second))
				}
				before, began := s.Stats(), time.Now()
				if err := s.Snapshot(ctx, func(x *txn.Txn) error {
					for _, name := range vaultTables {
						sum, rows, err := v.total(x, v.table(name))
						if err != nil {
							return fmt.Errorf("%s: %w", name, err)
						}
						if sum != int64(v.n)*vaultBalance {
							t.Errorf("%s: %d rows with %d in all, want %d", name, rows, sum, v.n*vaultBalance)
						}
					}
					return nil
				}, opts...); err != nil {
					t.Fatal(err)
				}
				// On a busy machine a server may answer too late, and the snapshot begins
				// again when it reads there. A body may exceed its time, and is then run once
				// more.
				st, took := s.Stats(), time.Since(began)
				n, late := st.Snapshots-before.Snapshots, st.Widened-before.Widened
				if n != 1+late && (took < txn.MaxBodyAge || n != 2+late) || late > 0 && took < answerMax {
					t.Errorf("one call took %d snapshots in %v, %d of them because a server had not answered: %v", n, took, late, st.Aborts)
				}
			}
			t.Logf("%d snapshots beside %d transfers", taken, written.Load())
		})
	}
}

// TestSnapshotSeesWhatEnded: a commit that ended before a snapshot began is in
// it, of any client and in any partition.
func TestSnapshotSeesWhatEnded(t *testing.T) {
	v := startVaults(t, vaultFabrics(t)[0], 3, 60, nil)
	other := v.open(t)
	defer other.Close()
	tab := v.table("tree")
	balance := tab.Field("balance")
	for n := range int64(40) {
		writer := v.db
		if n%2 == 1 {
			writer = other
		}
		if err := writer.Update(t.Context(), func(x *txn.Txn) error {
			for i := range v.n {
				if err := x.Put(tab, v.key(tab, i), v.row(tab, n, 0)); err != nil {
					return err
				}
			}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		if err := v.db.Snapshot(t.Context(), func(x *txn.Txn) error {
			for i := range v.n {
				row, err := x.Get(tab, v.key(tab, i))
				if err != nil {
					return err
				}
				if got := row.Int(balance); got != n {
					t.Errorf("account %d has %d in a snapshot that began after it was given %d", i, got, n)
				}
			}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
	}
}

// at returns the first n accounts of a table in a partition.
func (v *vaults) at(t testing.TB, tab *tables.Table, part, n int) (keys []tables.Key) {
	t.Helper()
	for i := 0; len(keys) < n && i < v.n; i++ {
		if h, err := v.db.Home(tab, v.key(tab, i)); err != nil {
			t.Fatal(err)
		} else if int(h) == part {
			keys = append(keys, v.key(tab, i))
		}
	}
	if len(keys) < n {
		t.Fatalf("partition %d has %d accounts, want %d", part, len(keys), n)
	}
	return keys
}

// TestSnapshotAsksAllPartitions: the clock of the second partition is ahead, and
// so is what commits there. A snapshot that begins afterwards has it, although
// it reads the first partition first.
func TestSnapshotAsksAllPartitions(t *testing.T) {
	v := startVaults(t, vaultFabrics(t)[0], 2, 40, nil)
	c, err := v.fabric.provider.Dial(t.Context(), v.servers[1].Addr())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	for _, name := range vaultTables {
		tab := v.table(name)
		first, second := v.at(t, tab, 0, 1)[0], v.at(t, tab, 1, 1)[0]
		ahead := clock.NewTicks().Now() + 50
		if resp, err := rdma.Call(t.Context(), c, wire.AppendAdopt(nil, 1, ahead), nil); err != nil || wire.Code(resp[0]) != wire.OK {
			t.Fatalf("adopt: %q, %v", resp, err)
		}
		if err := v.db.Update(t.Context(), func(x *txn.Txn) error { return x.Put(tab, second, v.row(tab, 12345, 1)) }); err != nil {
			t.Fatal(err)
		}
		if err := v.db.Snapshot(t.Context(), func(x *txn.Txn) error {
			if _, err := x.Get(tab, first); err != nil {
				return err
			}
			row, err := x.Get(tab, second)
			if err != nil {
				return err
			}
			if got := row.Int(tab.Field("balance")); got != 12345 {
				t.Errorf("%s: a snapshot misses what ended before it began: %d", name, got)
			}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
	}
}

// TestSnapshotWaitsForTheDecision: a transaction is in doubt. Locks do not stop
// a snapshot of the time before it. A snapshot of now waits for the decision,
// and then has all of the transaction.
func TestSnapshotWaitsForTheDecision(t *testing.T) {
	f := vaultFabrics(t)[0]
	v := startVaults(t, f, 2, 40, nil)
	network := f.provider.(*inproc.Network)
	writer, err := v.db.NewSession(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer writer.Close()
	reader, err := v.db.NewSession(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer reader.Close()
	tries := 0
	for _, name := range vaultTables {
		tab := v.table(name)
		keys := []tables.Key{v.at(t, tab, 0, 1)[0], v.at(t, tab, 1, 1)[0]}
		balance := tab.Field("balance")
		put := func(n int64) error {
			return writer.Update(t.Context(), func(x *txn.Txn) error {
				for _, k := range keys {
					if err := x.Put(tab, k, v.row(tab, n, int(n))); err != nil {
						return err
					}
				}
				return nil
			})
		}
		read := func(opts ...txn.SnapshotOption) (got [2]int64, err error) {
			err = reader.Snapshot(t.Context(), func(x *txn.Txn) error {
				for i, k := range keys {
					row, err := x.Get(tab, k)
					if err != nil {
						return err
					}
					got[i] = row.Int(balance)
				}
				return nil
			}, opts...)
			return got, err
		}
		if err := put(1); err != nil { // all connections are made
			t.Fatal(err)
		}
		if _, err := read(); err != nil {
			t.Fatal(err)
		}
		for again := true; again; {
			again = false
			began := time.Now()
			if err := network.Pause(v.servers[1].Addr()); err != nil {
				t.Fatal(err)
			}
			written := make(chan error, 1)
			go func() { written <- put(2) }()
			for end := time.Now().Add(testseed.Patience()); v.servers[0].Stats().Prepared == 0; time.Sleep(time.Millisecond) {
				if time.Now().After(end) { // until it is locked in partition 0
					_ = network.Resume(v.servers[1].Addr())
					t.Fatalf("%s: nothing is prepared: %v", name, <-written)
				}
			}
			time.Sleep(3 * clock.TickLength)
			if got, err := read(txn.Staleness(4 * time.Second)); err != nil || got != [2]int64{1, 1} {
				t.Errorf("%s: of the time before the transaction: %v, %v", name, got, err)
			}
			resume := time.AfterFunc(50*time.Millisecond, func() { _ = network.Resume(v.servers[1].Addr()) })
			got, err := read()
			resume.Stop()
			_ = network.Resume(v.servers[1].Addr())
			werr := <-written
			if err == nil && got[0] != got[1] {
				t.Errorf("%s: a snapshot has part of a transaction: %v", name, got)
			}
			if took := time.Since(began); errors.Is(werr, txn.ErrUnavailable) && took > time.Second && tries < 30 {
				// This process was held up, and server 0 has waited for the other in vain.
				t.Logf("%s: after %v: %v", name, took, werr)
				tries++
				again, werr, err = true, put(1), nil
			}
			if err := errors.Join(werr, err); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// TestOvertakenViewGoesOn: a View whose rows change in every attempt ends as a
// snapshot, with all that had ended before it began.
func TestOvertakenViewGoesOn(t *testing.T) {
	for _, f := range vaultFabrics(t) {
		t.Run(f.name, func(t *testing.T) { overtakenViewGoesOn(t, f) })
	}
}

func overtakenViewGoesOn(t *testing.T, f vaultFabric) {
	t.Helper()
	v := startVaults(t, f, 2, 50, nil)
	s, err := v.db.NewSession(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	for _, name := range vaultTables {
		tab := v.table(name)
		before, writes := s.Stats(), 0
		if err := s.View(t.Context(), func(x *txn.Txn) error {
			row, err := x.Get(tab, v.key(tab, 7))
			if err != nil {
				return err
			}
			first, had := row.Int(tab.Field("balance")), writes
			writes++
			if err := v.db.Update(t.Context(), func(x *txn.Txn) error { // after the first read
				for _, i := range []int{7, 8} {
					if err := x.Put(tab, v.key(tab, i), v.row(tab, int64(1000+writes), writes)); err != nil {
						return err
					}
				}
				return nil
			}); err != nil {
				return err
			}
			if row, err = x.Get(tab, v.key(tab, 8)); err != nil {
				return err
			}
			if second := row.Int(tab.Field("balance")); s.Stats().Overtaken > before.Overtaken && (first != second || first != int64(1000+had)) {
				t.Errorf("%s: a snapshot after %d writes has %d and %d", name, had, first, second)
			}
			return nil
		}); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		st := s.Stats()
		if st.Overtaken != before.Overtaken+1 || st.Snapshots != before.Snapshots+1+st.Widened-before.Widened || writes < 2 {
			t.Errorf("%s: after %d attempts, %d Views went on as %d snapshots", name, writes, st.Overtaken-before.Overtaken, st.Snapshots-before.Snapshots)
		}
	}
}

// TestOvertakenViewsTeachOthers: when a View has lost long attempts in vain, the next one
// goes on as a snapshot after one such attempt.
func TestOvertakenViewsTeachOthers(t *testing.T) {
	v := startVaults(t, vaultFabrics(t)[0], 2, 10, nil)
	tab := v.table("tree")
	for i, pause := range []time.Duration{2 * clock.TickLength, clock.TickLength / 6, clock.TickLength / 6} {
		s, err := v.db.NewSession(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		attempts, lost := 0, 0 // those lost are not of a snapshot, whose body may run again
		if err := s.View(t.Context(), func(x *txn.Txn) error {
			attempts++
			if s.Stats().Overtaken == 0 {
				lost++
			}
			if _, err := x.Get(tab, v.key(tab, 7)); err != nil {
				return err
			}
			time.Sleep(pause)
			return v.db.Update(t.Context(), func(x *txn.Txn) error { return x.Put(tab, v.key(tab, 7), v.row(tab, int64(attempts), i)) })
		}); err != nil {
			t.Fatal(err)
		}
		if st := s.Stats(); lost != 1 || st.Overtaken != 1 {
			t.Errorf("View %d has lost %d attempts, want 1; %d went on as snapshots", i, lost, st.Overtaken)
		}
	}
}

// TestLongViewChecksEarly: a View that writers have invalidated does not read all
// rows before it goes on as a snapshot.
func TestLongViewChecksEarly(t *testing.T) {
	const rows = 3000
	v := startVaults(t, vaultFabrics(t)[0], 2, rows, nil)
	s, err := v.db.NewSession(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	for _, name := range []string{"tree", "tree_wide", "tree_strings"} {
		tab, before, attempts, first := v.table(name), s.Stats(), 0, 0
		if err := s.View(t.Context(), func(x *txn.Txn) error {
			n := 0
			attempts++
			for _, err := range x.Scan(tab.Primary(), tables.First, tables.Last) {
				if err != nil {
					return err
				}
				if n++; attempts > 1 {
					continue
				}
				if first = n; n > 1 {
					continue
				}
				if err := v.db.Update(t.Context(), func(x *txn.Txn) error {
					return x.Put(tab, v.key(tab, 0), v.row(tab, vaultBalance, 1))
				}); err != nil {
					return err
				}
				time.Sleep(3 * clock.TickLength)
			}
			if n != rows {
				t.Errorf("%s: %d rows, want %d", name, n, rows)
			}
			return nil
		}); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if st := s.Stats(); attempts != 2 || first > rows/10 || st.Overtaken != before.Overtaken+1 {
			t.Errorf("%s: %d attempts, of which the first passed %d of %d rows; %d went on as snapshots",
				name, attempts, first, rows, st.Overtaken-before.Overtaken)
		}
	}
}

// TestSnapshotsOnlyRead: writes are refused and change nothing.
func TestSnapshotsOnlyRead(t *testing.T) {
	v := startVaults(t, vaultFabrics(t)[0], 1, 10, nil)
	for _, name := range vaultTables {
		tab := v.table(name)
		for verb, write := range map[string]func(*txn.Txn) error{
			"put":    func(x *txn.Txn) error { return x.Put(tab, v.key(tab, 3), v.row(tab, 1, 0)) },
			"insert": func(x *txn.Txn) error { return x.Insert(tab, v.key(tab, 99), v.row(tab, 1, 0)) },
			"update": func(x *txn.Txn) error { return x.Update(tab, v.key(tab, 3), v.row(tab, 1, 0)) },
			"delete": func(x *txn.Txn) error { return x.Delete(tab, v.key(tab, 3)) },
		} {
			if err := v.db.Snapshot(t.Context(), write); !errors.Is(err, txn.ErrReadOnly) {
				t.Errorf("%s in a snapshot of %s: %v, want %v", verb, name, err, txn.ErrReadOnly)
			}
		}
		if err := v.db.Snapshot(t.Context(), func(x *txn.Txn) error {
			if sum, rows, err := v.total(x, tab); err != nil || rows != 10 || sum != 10*vaultBalance {
				t.Errorf("%s: %d rows with %d, error %v", name, rows, sum, err)
			}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
	}
}

// TestSnapshotTooOld: a snapshot that outlives the retention gets an error that
// names it, as does one of servers that keep nothing.
func TestSnapshotTooOld(t *testing.T) {
	var old *txn.SnapshotTooOld
	var err error
	retain, atOnce := 50*time.Millisecond, false
	for ; !atOnce; retain *= 2 { // until the first rows are read before they are too old
		v := startVaults(t, vaultFabrics(t)[0], 2, 20, func(c *server.Config) {
			c.Retain, c.RetainBytes = retain, 1<<20
		})
		err = v.db.Snapshot(t.Context(), func(x *txn.Txn) error {
			start := time.Now()
			_, _, err := v.total(x, v.table("tree"))
			if atOnce = err == nil; !atOnce {
				if time.Since(start) < retain/4 || !errors.Is(err, txn.ErrSnapshotTooOld) || retain > 5*time.Second {
					t.Errorf("at once, with a retention of %v: %v", retain, err)
					atOnce = true
				}
				return err
			}
			time.Sleep(4 * retain)
			_, _, err = v.total(x, v.table("hash"))
			return err
		})
	}
	retain /= 2
	if !errors.As(err, &old) || !errors.Is(err, txn.ErrSnapshotTooOld) {
		t.Fatalf("a snapshot of %v with a retention of %v: %v", 4*retain, retain, err)
	}
	if old.Retain != retain || old.RetainBytes != 1<<20 || old.Age < 3*retain || time.Since(old.Time) > time.Minute {
		t.Errorf("the error is %+v", old)
	}
	for _, want := range []string{"--retain)", "--retain-bytes", retain.String()} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q does not name %s", err, want)
		}
	}
	none := startVaults(t, vaultFabrics(t)[0], 1, 20, func(c *server.Config) { c.Retain = -1 })
	err = none.db.Snapshot(t.Context(), func(x *txn.Txn) error {
		_, _, err := none.total(x, none.table("tree"))
		return err
	})
	if !errors.As(err, &old) || old.Retain != 0 || !strings.Contains(err.Error(), "keeps no versions (--retain 0)") {
		t.Errorf("a snapshot of a server without versions: %v", err)
	}
}
