package membertest

import (
	"context"
	"errors"
	"math/rand/v2"
	"reflect"
	"slices"
	"sync"
	"testing"
	"time"

	"drtmx/internal/clock"
	"drtmx/internal/member"
)

// directory is a model of a data directory: its claim, and the instances that
// have served on it or on what it is a copy of.
type directory struct {
	claim       member.Claim
	incarnation member.Incarnation
	log         uint64
	served      []member.Instance
}

func newDirectory() *directory {
	return &directory{claim: member.Claim{New: true}, incarnation: member.NewIncarnation()}
}

func (d *directory) copy() *directory {
	c := *d
	c.served = slices.Clone(d.served)
	return &c
}

var errCrash = errors.New("membertest: the process ends here")

// start admits an instance with the directory. crash ends it when its claim is
// recorded, before the map can name it.
func (d *directory) start(e *env, s member.Store, at member.Server, crash bool) (member.Instance, error) {
	at.Instance, at.Incarnation = member.NewInstance(), d.incarnation
	c := d.claim
	c.Log = d.log
	c.Record = func(next member.Claim) error {
		d.claim = next
		if crash {
			return errCrash
		}
		return nil
	}
	_, err := member.Admit(e.ctx, s, 2, 2, at, c)
	if err == nil {
		d.served = append(d.served, at.Instance)
	}
	return at.Instance, err
}

func testPlaces(t *testing.T, e *env) {
	s, at := e.open(t), server(1, 1)
	d, other := newDirectory(), newDirectory()
	must[member.Instance](t)(d.start(e, s, at, false))
	old := d.copy()
	must[member.Instance](t)(d.start(e, s, at, false))
	before := must[*member.State](t)(s.State(e.ctx))
	refused := func(what string, d *directory) {
		t.Helper()
		was := d.claim
		_, err := d.start(e, s, at, false)
		want(t, what, err, member.ErrPlace)
		if !reflect.DeepEqual(was, d.claim) {
			t.Errorf("%s: the directory was changed: %+v, was %+v", what, d.claim, was)
		}
	}
	refused("an older copy", old)
	refused("an empty directory", other)
	other.claim.New = false
	refused("another directory", other)
	other.claim.Cluster = before.Map.ID + 1
	refused("a directory of another cluster", other)
	_, err := member.Admit(e.ctx, s, 2, 2, server(1, 1), member.Claim{})
	want(t, "a server in memory", err, member.ErrPlace)
	if after := must[*member.State](t)(s.State(e.ctx)); !reflect.DeepEqual(before.Map, after.Map) {
		t.Errorf("refusals changed the map: %+v, was %+v", after.Map, before.Map)
	}

	elsewhere := e.openName(t, name(t))
	_, err = d.copy().start(e, elsewhere, at, false)
	want(t, "a store without the cluster", err, member.ErrPlace)
	if state := must[*member.State](t)(elsewhere.State(e.ctx)); state.Map != nil {
		t.Errorf("the refused directory has made map %+v", state.Map)
	}
	restored := newDirectory() // of a store that was restored: the map has its cluster, and not its place
	restored.claim = member.Claim{Cluster: before.Map.ID, Admitted: 1, Tried: 2}
	_, err = restored.start(e, s, server(0, 1), false)
	want(t, "a store that has lost the place", err, member.ErrPlace)

	// A crash before the map names the instance, and a memory server that made way.
	if _, err = d.start(e, s, at, true); !errors.Is(err, errCrash) {
		t.Error(err)
	}
	must[member.Instance](t)(d.start(e, s, at, false))
	must[*member.Map](t)(member.Admit(e.ctx, s, 2, 2, server(0, 1), member.Claim{}))
	must[member.Instance](t)(newDirectory().start(e, s, server(0, 1), false))
}

// A copy that was made during a life, and is started after that life, has the place
// only if its log has all that the life has noted.
func testLogs(t *testing.T, e *env) {
	s, at := e.open(t), server(1, 1)
	d := newDirectory()
	serve := func() member.Lease {
		t.Helper()
		instance := must[member.Instance](t)(d.start(e, s, at, false))
		at := at
		at.Instance, at.Incarnation = instance, d.incarnation
		return must[member.Lease](t)(s.Join(e.ctx, at, long))
	}
	lease := serve()
	d.log = 100
	check(t, lease.Advance(e.ctx, 100))
	early := d.copy()
	d.log = 150
	check(t, lease.Advance(e.ctx, 150))
	late := d.copy()
	d.log = 160 // nothing was acknowledged
	check(t, lease.Leave(e.ctx))
	before := must[*member.State](t)(s.State(e.ctx))
	claim := early.claim
	_, err := early.start(e, s, at, false)
	want(t, "a copy whose log lacks what was noted", err, member.ErrPlace)
	if early.claim.Tried != claim.Tried || early.claim.Admitted != claim.Admitted {
		t.Error("the refusal has changed the directory")
	}
	if after := must[*member.State](t)(s.State(e.ctx)); !reflect.DeepEqual(before.Map, after.Map) {
		t.Errorf("the refusal has changed the map: %+v, was %+v", after.Map, before.Map)
	}
	lease = serve() // the directory itself has more than was noted
	check(t, lease.Leave(e.ctx))
	_, err = late.start(e, s, at, false)
	want(t, "a copy of before the last start", err, member.ErrPlace)

	// A state that is another one begins anew.
	other := server(0, 1)
	memory := newDirectory()
	other.Instance, other.Incarnation = member.NewInstance(), memory.incarnation
	lease = must[member.Lease](t)(s.Join(e.ctx, other, long))
	check(t, lease.Advance(e.ctx, 1000))
	must[member.Instance](t)(newDirectory().start(e, s, other, false))
}

// Only the holder of an index advances what is noted of it, and only forwards.
func testAdvance(t *testing.T, e *env) {
	s, at := e.open(t), server(0, 1)
	noted := func(want member.Durable) {
		t.Helper()
		for _, s := range []member.Store{s, e.open(t)} {
			if d := must[member.Durable](t)(s.Durable(e.ctx, 0)); d != want {
				t.Errorf("noted %+v, want %+v", d, want)
			}
		}
	}
	noted(member.Durable{})
	before := must[*member.State](t)(s.State(e.ctx))
	lease := must[member.Lease](t)(s.Join(e.ctx, at, long))
	want(t, "a server in memory", lease.Advance(e.ctx, 1), member.ErrInput)
	at.Incarnation = member.NewIncarnation()
	lease = must[member.Lease](t)(s.Join(e.ctx, at, long))
	state := must[*member.State](t)(s.State(e.ctx))
	for _, log := range []uint64{7, 5, 9, 9} {
		check(t, lease.Advance(e.ctx, log))
	}
	noted(member.Durable{Incarnation: at.Incarnation, Log: 9})
	begun := clock.Now()
	must[*member.State](t)(s.Watch(e.ctx, before.Revision)) // of the Joins
	quiet, cancel := context.WithTimeout(e.ctx, 300*time.Millisecond+20*(clock.Now()-begun))
	defer cancel()
	if now, err := s.Watch(quiet, state.Revision); err == nil {
		t.Errorf("a watcher hears of a note: %+v", now)
	}
	again := must[member.Lease](t)(s.Join(e.ctx, at, long))
	now := must[*member.State](t)(s.Watch(e.ctx, state.Revision))
	if r, ok := now.Registered(0); !ok || r.Term != again.Stamp().Term {
		t.Errorf("a watcher hears of %+v, want the term %d", now, again.Stamp().Term)
	}
	want(t, "a lease that was replaced", lease.Advance(e.ctx, 20), member.ErrLeaseLost)
	check(t, again.Advance(e.ctx, 10))
	check(t, s.Evict(e.ctx, 0, at.Instance))
	want(t, "a lease that was taken away", again.Advance(e.ctx, 20), member.ErrLeaseLost)
	other := at
	other.Instance = member.NewInstance()
	lease = must[member.Lease](t)(e.open(t).Join(e.ctx, other, long))
	noted(member.Durable{Incarnation: at.Incarnation, Log: 10})
	check(t, lease.Advance(e.ctx, 11))
	check(t, lease.Leave(e.ctx))
	want(t, "a lease that was left", lease.Advance(e.ctx, 20), member.ErrLeft)
	noted(member.Durable{Incarnation: at.Incarnation, Log: 11})
	other.Incarnation = member.NewIncarnation()
	lease = must[member.Lease](t)(s.Join(e.ctx, other, long))
	check(t, lease.Advance(e.ctx, 2))
	noted(member.Durable{Incarnation: other.Incarnation, Log: 2})
}

// Copies of one directory, made at any moment, contend for its place, and crash
// while they do. Each one that is admitted has everything that was served before.
func testCopies(t *testing.T, e *env) {
	const workers, rounds = 4, 12
	seed := Seed(t)
	at := server(1, 1)
	var mu sync.Mutex // a start and the copies are one at a time each, as the lease has it
	first := newDirectory()
	served := []member.Instance{must[member.Instance](t)(first.start(e, e.open(t), at, false))}
	copies := []*directory{first}
	var all sync.WaitGroup
	var admitted, refused int
	for w := range workers {
		s := e.open(t)
		r := rand.New(rand.NewPCG(seed, uint64(w)))
		all.Go(func() {
			for range rounds {
				mu.Lock()
				d := copies[r.IntN(len(copies))]
				if r.IntN(2) == 0 {
					copies = append(copies, d.copy())
				}
				instance, err := d.start(e, s, at, r.IntN(4) == 0)
				switch {
				case err == nil:
					admitted++
					if served = append(served, instance); !slices.Equal(served, d.served) {
						t.Errorf("admitted a directory that has served %v, the place %v", d.served, served)
					}
				case errors.Is(err, member.ErrPlace):
					refused++
				case !errors.Is(err, errCrash):
					t.Error(err)
				}
				mu.Unlock()
			}
		})
	}
	all.Wait()
	if admitted == 0 || refused == 0 {
		t.Errorf("%d admitted, %d refused: the test has shown nothing", admitted, refused)
	}
}
