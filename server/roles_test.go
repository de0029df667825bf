package server

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"drtmx/index"
	"drtmx/internal/certs"
	"drtmx/internal/testaddr"
	"drtmx/internal/testseed"
	"drtmx/internal/twophase"
	"drtmx/internal/wire"
	"drtmx/rdma"
	"drtmx/rdma/inproc"
	"drtmx/rdma/shm"
	"drtmx/rdma/tcp"
	"drtmx/rdma/verbs"
	"drtmx/tables"
	"drtmx/txn"
)

// roleFabric is a fabric with peers that say who they are.
type roleFabric struct {
	name   string
	server rdma.Provider
	addrs  []string
	// apart is a provider of another process, where a data server proves its role by
	// the secret of the cluster.
	apart func(testing.TB) rdma.Provider
	// as dials as a peer; nil if the fabric has no such peers.
	as func(t testing.TB, who rdma.Identity) rdma.Provider
}

// sockets counts names, so that no two tests share one.
var sockets atomic.Uint64

func roleFabrics(t *testing.T) []roleFabric {
	net := inproc.New(inproc.Options{})
	fabrics := []roleFabric{{
		name: "inproc", server: net, addrs: []string{"a", "b"},
		as: func(_ testing.TB, who rdma.Identity) rdma.Provider { return net.As(who) },
	}}
	keyed := func(name string, make func() (rdma.Provider, error), addrs ...string) {
		p, err := make()
		if err != nil {
			t.Logf("without %s: %v", name, err)
			return
		}
		fabrics = append(fabrics, roleFabric{
			name: name, server: p, addrs: addrs,
			apart: func(t testing.TB) rdma.Provider {
				p, err := make()
				if err != nil {
					t.Fatal(err)
				}
				return p
			},
			as: func(_ testing.TB, who rdma.Identity) rdma.Provider {
				if who.Restricted() || who.Role == rdma.RoleNone && name == "shm" {
					return nil
				}
				return rdma.As(p, who)
			},
		})
	}
	name := fmt.Sprintf("@drtmx-roles-%d-%d-", os.Getpid(), sockets.Add(1))
	keyed("shm", func() (rdma.Provider, error) { return shm.New(shm.Options{}) }, name+"0", name+"1")
	keyed("plain tcp", func() (rdma.Provider, error) { return tcp.New(tcp.Options{}) }, testaddr.Free(t), testaddr.Free(t))
	if device := os.Getenv("DRTMX_VERBS_DEVICE"); verbs.Built && device != "" {
		open := func() (rdma.Provider, error) { return verbs.New(verbs.Options{Device: device}) }
		var addrs []string
		for range 2 { // of the device, at ports that are free
			p, err := open()
			if err != nil {
				t.Fatal(err)
			}
			e, err := p.Listen("", rdma.ListenOptions{})
			if err != nil {
				t.Fatal(err)
			}
			defer e.Close()
			addrs = append(addrs, e.Addr())
		}
		keyed("verbs", open, addrs...)
	} else {
		t.Log("without verbs: not built with the tag, or DRTMX_VERBS_DEVICE names no RDMA device; make test-verbs runs this with one")
	}
	ca, err := certs.NewAuthority("roles", time.Now(), time.Now().Add(time.Hour))
	if err != nil {
		t.Fatal(err)
	}
	over := func(t testing.TB, l certs.Leaf) rdma.Provider {
		p, err := tcp.New(tcp.Options{TLS: signed(t, ca, l)})
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	addrs := []string{testaddr.Free(t), testaddr.Free(t)}
	return append(fabrics, roleFabric{
		name: "tcp", server: over(t, certs.Leaf{Name: "server", Role: certs.RoleServer, Hosts: []string{testaddr.Host(), "127.0.0.1"}}),
		addrs: addrs,
		as: func(t testing.TB, who rdma.Identity) rdma.Provider {
			return over(t, certs.Leaf{Name: who.Name, Role: who.Role.String(), Tables: who.Tables})
		},
	})
}

// signed writes a certificate and returns the names of its files.
func signed(t testing.TB, ca *certs.Authority, l certs.Leaf) *tcp.TLS {
	t.Helper()
	l.NotBefore, l.NotAfter = time.Now().Add(-time.Minute), time.Now().Add(time.Hour)
	p, err := ca.Sign(l)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	o := &tcp.TLS{CA: filepath.Join(dir, "ca"), Cert: filepath.Join(dir, "cert"), Key: filepath.Join(dir, "key")}
	for f, b := range map[string][]byte{o.CA: ca.Cert, o.Cert: p.Cert, o.Key: p.Key} {
		if err := os.WriteFile(f, b, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return o
}

// serve starts the fabric's data servers with an empty bank.
func (f *roleFabric) serve(t *testing.T) (*tables.Catalog, []*Server) {
	t.Helper()
	cat := bank(t)
	var all []*Server
	for i := range f.addrs {
		s, err := New(Config{
			Index: i, Addrs: f.addrs, Catalog: cat, Procedures: []txn.Procedure{transferProcedure(cat)}, Provider: f.server,
			MemoryBytes: 1 << 26,
		})
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
		all = append(all, s)
	}
	return cat, all
}

func (f *roleFabric) dial(t *testing.T, who rdma.Identity, addr string) rdma.Conn {
	t.Helper()
	c, err := f.as(t, who).Dial(t.Context(), addr)
	if err != nil {
		t.Fatalf("dial as %v: %v", &who, err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// ask is the code of the answer to a request.
func ask(t *testing.T, c rdma.Conn, req []byte) wire.Code {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), testseed.Patience())
	defer cancel()
	resp, err := rdma.Call(ctx, c, req, nil)
	if err != nil || len(resp) == 0 {
		t.Fatalf("request %v: %q, %v", wire.Op(req[0]), resp, err)
	}
	return wire.Code(resp[0])
}

func (s *Server) refused(reason string) uint64 {
	for _, r := range s.Stats().Refusals {
		if r.Reason == reason {
			return r.Count
		}
	}
	return 0
}

// TestEveryRequestUnderEveryRole sends every request there is, and every byte
// that is none, as every role over every fabric. What a role may not do is
// refused before anything is looked at, and counted.
func TestEveryRequestUnderEveryRole(t *testing.T) {
	reader := map[wire.Op]bool{wire.OpHello: true, wire.OpRead: true, wire.OpStats: true, wire.OpAdopt: true, wire.OpLease: true}
	writer := map[wire.Op]bool{wire.OpCommit: true, wire.OpCall: true, wire.OpOutcome: true, wire.OpGoodbye: true, wire.OpReserve: true, wire.OpWriter: true}
	loader := map[wire.Op]bool{wire.OpLoad: true, wire.OpSeal: true, wire.OpAlter: true, wire.OpEmpty: true, wire.OpBackup: true}
	for _, f := range roleFabrics(t) {
		t.Run(f.name, func(t *testing.T) {
			cat, servers := f.serve(t)
			s := servers[0]
			tried := 0
			for _, role := range rdma.Roles() {
				who := rdma.Identity{Role: role, Name: role.String()}
				if f.as(t, who) == nil {
					continue
				}
				c := f.dial(t, who, s.Addr())
				bodies := requestBodies(cat, uint64(role)*10)
				for b := range 256 {
					op := wire.Op(b)
					allowed := role == rdma.RoleServer || role >= rdma.RoleReader && reader[op] ||
						role >= rdma.RoleWriter && writer[op] || role >= rdma.RoleLoader && loader[op]
					for _, req := range append(bodies[op], []byte{byte(op)}) {
						before := s.refused("request_role")
						code := ask(t, c, req)
						if (code != wire.Forbidden) != allowed {
							t.Errorf("%v as %v is answered %d; allowed: %v", op, role, code, allowed)
						}
						if counted := s.refused("request_role") > before; counted == allowed {
							t.Errorf("%v as %v: the refusal is counted: %v, allowed: %v", op, role, counted, allowed)
						}
						tried++
					}
				}
			}
			t.Logf("%d requests", tried)
			if err := settle(s); err != nil {
				t.Error(err)
			}
		})
	}
}

// requestBodies are well-formed requests that would change something, with
// sessions from a number on.
func requestBodies(cat *tables.Catalog, session uint64) map[wire.Op][][]byte {
	entry := cat.MustTable("entry").Primary()
	commit := func(client, key uint64) *wire.Commit {
		return &wire.Commit{ID: wire.ID{Client: client, Seq: 1}, Parts: []wire.Part{{
			Writes: []wire.Write{{Index: uint16(entry.ID), Op: wire.Put, Key: index.Num(key), Row: make([]byte, entry.RowBytes)}},
		}}}
	}
	other := twophase.Party{Partition: 0, Incarnation: session + 1} // another life of this partition
	message := func(op wire.Op, k twophase.Kind, c *wire.Commit) []byte {
		b := wire.AppendMessages([]byte{byte(op)}, []twophase.Message{{Kind: k, From: other, To: other, ID: twophase.ID{Coordinator: other, Seq: 1}}})
		if c != nil {
			b = wire.AppendParts(b, c, nil)
		}
		return b
	}
	return map[wire.Op][][]byte{
		wire.OpCommit:  {wire.AppendCommit(nil, wire.OpCommit, commit(session+1, 1), nil)},
		wire.OpCall:    {wire.AppendCall(nil, wire.ID{Client: session + 2, Seq: 1}, wire.Sent{}, 0, 0, 0, 0, "transfer", transferArgs(1, 2, 3))},
		wire.OpPrepare: {message(wire.OpPrepare, twophase.Prepare, commit(session+3, 2))},
		wire.OpDecide:  {message(wire.OpDecide, twophase.Decide, nil)},
		wire.OpOutcome: {wire.AppendOutcome(nil, wire.ID{Client: session + 5, Seq: 1}, wire.Sent{}, wire.OutcomeWait)},
		wire.OpResolve: {message(wire.OpResolve, twophase.Ask, nil)},
		wire.OpWriter: {
			(&wire.WriterRequest{Step: wire.WriterOpen, Index: entry.ID, Name: session + 7}).Append(nil),
			(&wire.WriterRequest{Step: wire.WriterExtend, Index: entry.ID, Name: session + 7}).Append(nil),
		},
		wire.OpReserve: {wire.AppendReserve(nil, session+6, 0, &wire.Turn{Wait: time.Second, Rows: []wire.RowName{wire.NameRow(uint16(entry.ID), index.Num(1))}})},
	}
}

// TestARoleIsNotClaimed: a process that does not know the secret of the cluster is
// not connected as a data server, over any fabric without certificates; one that
// knows it is.
func TestARoleIsNotClaimed(t *testing.T) {
	for _, f := range roleFabrics(t) {
		if f.apart == nil {
			continue
		}
		t.Run(f.name, func(t *testing.T) {
			_, servers := f.serve(t)
			other := f.apart(t)
			server := rdma.Identity{Role: rdma.RoleServer}
			for range 2 {
				if _, err := rdma.As(other, server).Dial(t.Context(), servers[0].Addr()); !errors.Is(err, rdma.ErrRole) {
					t.Fatalf("a process without the secret dials as a data server: %v", err)
				}
				rdma.SetSecret(other, []byte("of another cluster"))
			}
			for deadline := time.Now().Add(testseed.Patience()); servers[0].refused("role_not_proved") != 2; time.Sleep(time.Millisecond) {
				if time.Now().After(deadline) {
					t.Fatalf("%d refusals are counted, want 2", servers[0].refused("role_not_proved"))
				}
			}
			rdma.SetSecret(f.server, []byte("of the cluster"))
			rdma.SetSecret(other, []byte("of the cluster"))
			c, err := rdma.As(other, server).Dial(t.Context(), servers[0].Addr())
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			if code := ask(t, c, requestBodies(servers[0].cfg.Catalog, 0)[wire.OpResolve][0]); code == wire.Forbidden {
				t.Error("a process with the secret is no data server")
			}
		})
	}
}

// TestTablesOfAClient: a client of some tables reads and writes those, and
// nothing else, in any way there is.
func TestTablesOfAClient(t *testing.T) {
	for _, f := range roleFabrics(t) {
		if f.as(t, rdma.Identity{Role: rdma.RoleLoader, Tables: []string{"entry"}}) == nil {
			continue
		}
		t.Run(f.name, func(t *testing.T) {
			cat, servers := f.serve(t)
			s := servers[0]
			who := rdma.Identity{Role: rdma.RoleLoader, Name: "clerk", Tables: []string{"entry"}}
			c := f.dial(t, who, s.Addr())
			seq := uint64(0)
			for _, ix := range cat.Indexes {
				mine := ix.Table.Name() == "entry"
				seq++
				write := wire.Commit{ID: wire.ID{Client: 201, Seq: seq}, Sent: s.clocks.present(), Parts: []wire.Part{{
					Writes: []wire.Write{{Index: uint16(ix.ID), Op: wire.Put, Key: index.Num(7), Row: make([]byte, ix.RowBytes)}},
				}}}
				for what, req := range map[string][]byte{
					"read":   wire.AppendReads(nil, []wire.Read{{Index: uint16(ix.ID), Lo: index.Num(7)}}),
					"commit": wire.AppendCommit(nil, wire.OpCommit, &write, nil),
					"load":   {byte(wire.OpLoad), 0, 0, byte(ix.ID), 0, 0, 0, 0, 0},
				} {
					before := s.refused("request_table")
					code := ask(t, c, req)
					if (code == wire.Forbidden) == mine || (s.refused("request_table") > before) == mine {
						t.Errorf("%s of %s is answered %d", what, ix.Name, code)
					}
				}
			}
			for what, req := range map[string][]byte{
				"call": wire.AppendCall(nil, wire.ID{Client: 202, Seq: 1}, s.clocks.present(), 0, 0, 0, 0, "transfer", transferArgs(1, 2, 3)),
				"seal": {byte(wire.OpSeal)}, "empty": {byte(wire.OpEmpty)}, "backup": {byte(wire.OpBackup), wire.BackupBegin},
			} {
				if code := ask(t, c, req); code != wire.Forbidden {
					t.Errorf("%s is answered %d", what, code)
				}
			}
			// A region holds the rows of all tables.
			var b rdma.Batch
			for key := rdma.RKey(1); key <= 3; key++ {
				b.Read(key, 64, make([]uint64, 8))
			}
			if err := rdma.Do(t.Context(), c, &b); !errors.Is(err, rdma.ErrAccess) {
				t.Errorf("one-sided READs: %v", err)
			}
			for i := range b.WRs {
				if b.WRs[i].Status != rdma.StatusAccess {
					t.Errorf("a READ of region %d has status %d", i+1, b.WRs[i].Status)
				}
			}
		})
	}
}

// TestASessionIsItsClients: another client neither learns the outcome of a
// session's transaction, nor commits in its name, nor has its next ones
// refused by asking about them.
func TestASessionIsItsClients(t *testing.T) {
	for _, f := range roleFabrics(t) {
		if f.apart != nil {
			continue // without certificates all peers are one client
		}
		t.Run(f.name, func(t *testing.T) {
			cat, servers := f.serve(t)
			s := servers[0]
			entry := cat.MustTable("entry").Primary()
			req := func(seq uint64) []byte {
				return wire.AppendCommit(nil, wire.OpCommit, &wire.Commit{ID: wire.ID{Client: 301, Seq: seq}, Sent: s.clocks.present(), Parts: []wire.Part{{
					Writes: []wire.Write{{Index: uint16(entry.ID), Op: wire.Put, Key: index.Num(seq), Row: make([]byte, entry.RowBytes)}},
				}}}, nil)
			}
			outcome := func(seq uint64) []byte {
				return wire.AppendOutcome(nil, wire.ID{Client: 301, Seq: seq}, s.clocks.present(), wire.OutcomeWait)
			}
			honest := f.dial(t, rdma.Identity{Role: rdma.RoleWriter, Name: "honest"}, s.Addr())
			thief := f.dial(t, rdma.Identity{Role: rdma.RoleLoader, Name: "thief"}, s.Addr())
			if code := ask(t, honest, req(1)); code != wire.OK {
				t.Fatalf("the first commit is answered %d", code)
			}
			for seq := uint64(1); seq < 100; seq++ {
				for what, code := range map[string]wire.Code{
					"question": ask(t, thief, outcome(seq)),
					"commit":   ask(t, thief, req(seq)),
				} {
					if code != wire.Forbidden {
						t.Fatalf("another client's %s about transaction %d is answered %d", what, seq, code)
					}
				}
			}
			again := f.dial(t, rdma.Identity{Role: rdma.RoleWriter, Name: "honest"}, s.Addr()) // after a lost connection, say
			if code := ask(t, again, outcome(1)); code != wire.OK {
				t.Errorf("the client's own question is answered %d", code)
			}
			if code := ask(t, again, req(2)); code != wire.OK {
				t.Errorf("the client's next commit is answered %d", code)
			}
			if s.refused("request_session") == 0 {
				t.Error("the refusals are not counted")
			}
		})
	}
}

// TestAReaderOfTheDatabase: what a DB of a reader may not do is a typed error,
// and Views work.
func TestAReaderOfTheDatabase(t *testing.T) {
	for _, f := range roleFabrics(t) {
		t.Run(f.name, func(t *testing.T) {
			cat, servers := f.serve(t)
			var addrs []string
			for _, s := range servers {
				addrs = append(addrs, s.Addr())
			}
			open := func(who rdma.Identity) *txn.DB {
				db, err := txn.Open(t.Context(), txn.Config{Servers: addrs, Dial: f.as(t, who).Dial})
				if err != nil {
					t.Fatalf("open as %v: %v", &who, err)
				}
				t.Cleanup(func() { _ = db.Close() })
				return db
			}
			acct := cat.MustTable("account")
			putAccounts(t, open(rdma.Identity{Role: rdma.RoleWriter, Name: "w"}), acct, 4, 100)
			db := open(rdma.Identity{Role: rdma.RoleReader, Name: "r"})
			err := db.View(t.Context(), func(tx *txn.Txn) error {
				_, err := tx.Get(acct, tables.Num(1))
				return err
			})
			if err != nil {
				t.Errorf("a reader's View: %v", err)
			}
			err = db.Update(t.Context(), func(tx *txn.Txn) error { return tx.Delete(acct, tables.Num(1)) })
			if !errors.Is(err, txn.ErrForbidden) {
				t.Errorf("a reader's Update: %v", err)
			}
			if _, err = db.Call(t.Context(), 0, "transfer", transferArgs(1, 2, 3)); !errors.Is(err, txn.ErrForbidden) {
				t.Errorf("a reader's call: %v", err)
			}
		})
	}
}
