package cluster

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"drtmx/internal/clock"
	"drtmx/internal/datadir"
	"drtmx/internal/member"
	"drtmx/internal/placement"
	"drtmx/internal/replica"
	"drtmx/internal/vfstest"
	"drtmx/server"
	"drtmx/tables"
	"drtmx/txn"
)

// soon makes a server go back to its own host soon, and a move that has failed be tried
// again soon.
func soon(t *testing.T) {
	setPaces(t, paces{returnAfter: 100 * time.Millisecond, movePause: 300 * time.Millisecond})
}

// late makes no server go back to its own host while a test runs.
func late(t *testing.T) { setPaces(t, paces{returnAfter: time.Hour}) }

// pacesOf has the times that hosts of tests wait, by the name of the test.
var pacesOf sync.Map

func setPaces(t *testing.T, p paces) {
	t.Helper()
	pacesOf.Store(t.Name(), p)
	t.Cleanup(func() { pacesOf.Delete(t.Name()) })
}

// pacesFor returns the times that were set for a test, or for one of which it is a part.
func pacesFor(t *testing.T) paces {
	for name := t.Name(); ; name = name[:strings.LastIndexByte(name, '/')] {
		if p, ok := pacesOf.Load(name); ok {
			return p.(paces)
		}
		if !strings.Contains(name, "/") {
			return paces{}
		}
	}
}

// writers insert pairs of rows until they are stopped.
type writers struct {
	h     *hostsOf
	next  atomic.Uint64
	stop  chan struct{}
	wg    sync.WaitGroup
	acked sync.Map
	stopwatch
}

func (h *hostsOf) write(n int) *writers {
	w := &writers{h: h, stop: make(chan struct{})}
	w.next.Store(1 << 20)
	for range n {
		w.wg.Go(func() {
			for {
				select {
				case <-w.stop:
					return
				default:
				}
				k, began := w.next.Add(2)-2, clock.Now()
				if err := insertPair(h.ctx, h.db, k); err != nil {
					h.t.Errorf("key %d: %v", k, err)
					return
				}
				w.waited(began)
				w.acked.Store(k, true)
			}
		})
	}
	return w
}

// goOn waits until more was written.
func (w *writers) goOn() {
	w.h.t.Helper()
	from := w.next.Load()
	eventually(w.h.t, "writers go on", func() bool { return w.next.Load() > from+100 })
}

// end ends the writers, and checks that all that was acknowledged is there.
func (w *writers) end() (acked int) {
	h := w.h
	h.t.Helper()
	close(w.stop)
	w.wg.Wait()
	tab, err := h.db.Table("t")
	if err != nil {
		h.t.Fatal(err)
	}
	w.acked.Range(func(k, _ any) bool {
		acked++
		err := h.db.View(h.ctx, func(x *txn.Txn) error {
			for i := range uint64(2) {
				if _, err := x.Get(tab, tables.Num(k.(uint64)+i)); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			h.t.Errorf("acknowledged keys from %d on: %v", k, err)
		}
		return true
	})
	return acked
}

// TestHostComesBack: a host whose data server was taken over is started again. It keeps
// a copy, the other host gives the server back when that is in sync, and all hosts have
// their own servers. Clients write all the time, and nothing that was acknowledged is
// lost.
func TestHostComesBack(t *testing.T) {
	t.Parallel()
	soon(t)
	h := startHosts(t, 3)
	h.fill(0, 20)
	w := h.write(2)
	w.goOn()
	h.inSync(1)
	if err := h.hosts[1].Close(); err != nil {
		t.Fatal(err)
	}
	h.hosts[1] = nil
	eventually(t, "host 2 has server 1", func() bool { return h.at(1) == 2 })
	w.goOn()
	said := h.comeBack(1)
	if want := "data server 1 is at host 2"; !slices.ContainsFunc(said, func(s string) bool { return strings.HasPrefix(s, want) }) {
		t.Errorf("it said %q, want %q", said, want)
	}
	if at := h.at(1); at != 1 {
		t.Errorf("server 1 is at host %d", at)
	}
	w.goOn()
	h.has(20)
	for i := range 3 {
		h.inSync(i)
	}
	t.Logf("%d pairs acknowledged", w.end())
	dir := filepath.Join(h.dir, "host-1")
	eventually(t, "host 2 has removed what it had of server 1", func() bool {
		_, err := os.Stat(homeDir(server.ServerDir(filepath.Join(h.dir, "host-2"), 2), 1))
		return errors.Is(err, os.ErrNotExist)
	})
	for _, gone := range []string{server.ServerDir(dir, 1) + formerDir, keeperDir(dir, 1)} {
		if _, err := os.Stat(gone); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s is there: %v", gone, err)
		}
	}
	if err := h.cluster.Err(); err != nil {
		t.Errorf("the client counts the server as lost: %v", err)
	}
}

// comeBack starts a host again whose data server is elsewhere, and returns what it
// said meanwhile.
func (h *hostsOf) comeBack(i int) (said []string) {
	h.t.Helper()
	o := h.options(i)
	o.Return = true
	o.Waiting = func(text string) { said = append(said, text) }
	var err error
	if h.hosts[i], err = Join(h.ctx, o); err != nil {
		h.t.Fatal(err)
	}
	return said
}

// formerStore is the store of a host to which the first answer is an older one.
type formerStore struct {
	member.Store
	former *member.State
	asked  atomic.Bool
}

func (s *formerStore) State(ctx context.Context) (*member.State, error) {
	if s.asked.CompareAndSwap(false, true) {
		return s.former, nil
	}
	return s.Store.State(ctx)
}

// TestTakenOverWhileItStarts: a host is started again and finds that it has its data
// server; before it has its place, another host takes the server over. It keeps copies
// and has the server back, as if that had been before.
func TestTakenOverWhileItStarts(t *testing.T) {
	t.Parallel()
	soon(t)
	h := startHosts(t, 3)
	h.fill(0, 20)
	former, err := h.stores[1].State(h.ctx)
	if err != nil {
		t.Fatal(err)
	}
	h.inSync(1)
	if err := h.hosts[1].Close(); err != nil {
		t.Fatal(err)
	}
	h.hosts[1] = nil
	eventually(t, "host 2 has server 1", func() bool { return h.at(1) == 2 })
	o := h.options(1)
	o.Return, o.Store = true, &formerStore{Store: o.Store, former: former}
	if h.hosts[1], err = Join(h.ctx, o); err != nil {
		t.Fatalf("it does not come back: %v", err)
	}
	if at := h.at(1); at != 1 {
		t.Errorf("server 1 is at host %d", at)
	}
	h.has(20)
}

// TestHostsComeBackInTurn: with two hosts, each of which is lost once and comes back, the
// second without its directory, a server goes there and back, and the other one has its
// copy at the keeper.
func TestHostsComeBackInTurn(t *testing.T) {
	t.Parallel()
	soon(t)
	h := startHosts(t, 2)
	w := h.write(2)
	for i := range 2 {
		for k := range 2 {
			h.inSync(k)
		}
		if err := h.hosts[i].Close(); err != nil {
			t.Fatal(err)
		}
		h.hosts[i] = nil
		if i == 1 {
			if err := os.RemoveAll(filepath.Join(h.dir, "host-1")); err != nil {
				t.Fatal(err)
			}
		}
		eventually(t, fmt.Sprintf("the other host has server %d", i), func() bool { return h.at(i) == 1-i })
		w.goOn()
		h.comeBack(i)
		w.goOn()
	}
	if h.at(0) != 0 || h.at(1) != 1 {
		t.Errorf("the servers are at hosts %d and %d", h.at(0), h.at(1))
	}
	t.Logf("%d pairs acknowledged", w.end())
}

// TestKeeperTakesItsServer: the host that has taken a server over is lost before it has
// given it back. The keeper takes it, since its copy is in sync.
func TestKeeperTakesItsServer(t *testing.T) {
	t.Parallel()
	late(t)
	h := startHosts(t, 2)
	h.fill(0, 20)
	h.inSync(0)
	if err := h.hosts[0].Close(); err != nil {
		t.Fatal(err)
	}
	h.hosts[0] = nil
	eventually(t, "host 1 has server 0", func() bool { return h.at(0) == 1 })
	back := make(chan error, 1)
	go func() {
		o, err := h.options(0), error(nil)
		o.Return = true
		h.hosts[0], err = Join(h.ctx, o)
		back <- err
	}()
	for i := range 2 {
		eventually(t, fmt.Sprintf("server %d has a copy at the keeper", i), func() bool {
			s, err := h.members.Open().State(h.ctx)
			return err == nil && s.Map.Set(placement.Server(i)).Members.Has(s.Map.Copy(placement.Server(i), 0))
		})
	}
	h.fill(20, 40)
	for i := range 2 {
		h.inSync(i)
	}
	h.cutOff(1)
	others := h.hosts[1].others
	others.mu.Lock()
	other := others.mu.homes[0].member
	others.mu.Unlock()
	if err := h.stores[1].Evict(h.ctx, 0, other.place.self.Instance); err != nil {
		t.Fatal(err)
	}
	if err := <-back; err != nil {
		t.Fatal(err)
	}
	eventually(t, "host 0 has both servers", func() bool { return h.at(0) == 0 && h.at(1) == 0 })
	h.stores[1].away.Store(false)
	select {
	case <-h.hosts[1].Lost():
	case <-h.ctx.Done():
		t.Fatal("the former host does not know")
	}
	if err := h.hosts[1].Close(); err != nil {
		t.Error(err)
	}
	h.hosts[1] = nil
	h.fill(40, 60)
	h.has(60)
}

// TestFinishReturn: a host ends, or its disk fails, at any operation while a copy takes
// the place of its former directory. The next process ends that: the copy is the
// directory, what was there before is gone, and the other copies and servers are there.
func TestFinishReturn(t *testing.T) {
	for _, lost := range []bool{false, true} {
		points := 0
		for at, done := 0, false; !done; at++ {
			mem := vfs.NewMem()
			o, m := returning(t, mem, lost)
			fs := vfstest.New(mem)
			n := 0
			fs.Before = func(_ int, op vfstest.Op, _ string) error {
				if op.Changes() {
					if n++; n > at {
						return errors.New("the disk has failed")
					}
				}
				return nil
			}
			err := finishReturn(fs, o, m)
			if done = err == nil; !done {
				points++
			}
			for range 2 {
				if err := finishReturn(mem, o, m); err != nil {
					t.Fatalf("lost %t, after a failure of operation %d: %v", lost, at, err)
				}
			}
			returned(t, mem, fmt.Sprintf("lost %t, operation %d", lost, at), lost)
		}
		if points < 10 {
			t.Errorf("%d points of failure", points)
		}
	}
	// A copy that the map does not name stays what it is.
	mem := vfs.NewMem()
	o, m := returning(t, mem, false)
	for _, change := range []func(*member.Server){
		func(s *member.Server) { s.Instance = 6 },
		func(s *member.Server) { s.Host = 2 },
	} {
		other := m.Clone()
		change(&other.Servers[0])
		if err := finishReturn(mem, o, other); err != nil {
			t.Fatal(err)
		}
		if id, ok, err := datadir.Read(mem, "d/server-1"); err != nil || !ok || id.ID != idOf("1") {
			t.Errorf("the directory is %+v, %v, with a map of %+v", id, err, other.Servers[0])
		}
	}
}

func idOf(digit string) string { return strings.Repeat(digit, 32) }

// returning makes the directories of host 1, whose copy of server 1 is named by the map.
func returning(t *testing.T, fs vfs.FS, lost bool) (*JoinOptions, *member.Map) {
	t.Helper()
	id := func(digit string, index placement.Server) datadir.Identity {
		return datadir.Identity{Format: datadir.Format, ID: idOf(digit), Incarnation: 5, Server: index, Servers: 3, Partitions: 3, Catalog: []byte("{}")}
	}
	var errs []error
	complete := func(dir string, id datadir.Identity) {
		errs = append(errs, datadir.MakeDir(fs, dir), datadir.CompleteCopy(fs, dir, id))
	}
	if !lost {
		complete("d/server-1", id("1", 1))
		complete("d/server-1/homes/server-2", id("2", 2))
	}
	keep := keeperDir("d", 1)
	complete(server.CopyDir(fs, keep, 0), id("0", 0))
	from := server.CopyDir(fs, keep, 1)
	errs = append(errs, datadir.WriteCopy(fs, from, datadir.Copy{Epoch: 4, Since: 2}))
	complete(from, id("3", 1))
	errs = append(errs, datadir.WritePlace(fs, from, datadir.Place{Cluster: 7, Tried: 77}))
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	return &JoinOptions{Size: Size{Servers: 3, DataDir: "d"}, Index: 1, Log: slog.New(slog.DiscardHandler)}, &member.Map{
		Epoch: 9, ID: 7, Size: 3, Servers: []member.Server{{Index: 1, Host: 1, Instance: 77}},
		Sets: []member.ServerSet{{Server: 1, Set: replica.Set{Epoch: 5, Since: 5, Version: 3, Members: 1}}},
	}
}

// returned checks what becomes of them.
func returned(t *testing.T, fs vfs.FS, what string, lost bool) {
	t.Helper()
	dirs := map[string]string{"d/server-1": "3", "d/server-1/copies/server-0": "0"}
	if !lost {
		dirs["d/server-1/homes/server-2"] = "2"
	}
	for dir, digit := range dirs {
		if id, ok, err := datadir.Read(fs, dir); err != nil || !ok || id.ID != idOf(digit) {
			t.Errorf("%s: %s is %+v, %v", what, dir, id, err)
		}
	}
	if _, ok, err := datadir.ReadCopy(fs, "d/server-1"); ok || err != nil {
		t.Errorf("%s: the directory is still a copy: %v", what, err)
	}
	if names, err := fs.List("d"); err != nil || !slices.Equal(names, []string{"server-1"}) {
		t.Errorf("%s: there are %v, %v", what, names, err)
	}
	d, err := datadir.OpenPlaced(fs, "d/server-1", datadir.Identity{Server: 1, Servers: 3, Partitions: 3})
	if err != nil {
		t.Fatalf("%s: %v", what, err)
	}
	if d.Epoch <= 5 || d.Place.Tried != 77 {
		t.Errorf("%s: epoch %d, %+v", what, d.Epoch, d.Place)
	}
	if err := d.Close(); err != nil {
		t.Error(err)
	}
}
