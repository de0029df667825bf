package command

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"syscall"
	"time"

	"drtmx/internal/cluster"
	"drtmx/internal/placement"
)

const (
	// awayMax bounds how long data servers that were killed are away before they
	// are started again.
	awayMax = time.Second
	// awayHosts is the same for hosts: in most rounds longer than the lease.
	awayHosts = 3 * hostLease
	// resumeTimeout bounds the time until every client has committed again.
	resumeTimeout = 30 * time.Second
)

// loadAndReplace lets the clients work, kills some data servers at a random moment,
// and starts them again. The clients and the other data servers go on.
func (t *durabilityTest) loadAndReplace(ctx context.Context, r *roundReport) error {
	working, stop := context.WithCancel(ctx)
	defer stop()
	errs := make([]error, len(t.clients))
	never := make(chan struct{})
	var all sync.WaitGroup
	begin := time.Now()
	for i, c := range t.clients {
		all.Go(func() { errs[i] = c.work(working, t.s.db, never, c.within) })
	}
	moment := time.Duration(t.rnd.Uint64n(uint64(t.f.duration)))
	err := t.wait(ctx, moment)
	r.LoadS = time.Since(begin).Seconds()
	var were []int
	if err == nil && t.hosted() {
		were, err = t.awaitCopies(ctx)
	}
	if err == nil {
		for _, c := range t.clients {
			c.gap.Store(0)
		}
		before := t.acknowledged()
		away := time.Now()
		if err = t.replace(ctx, r); err == nil {
			r.AwayS, r.Meanwhile = time.Since(away).Seconds(), t.acknowledged()-before
			err = t.awaitClients(ctx, r)
		}
	}
	if err == nil && t.hosted() {
		err = t.moved(ctx, r, were)
	}
	stop()
	all.Wait()
	return errors.Join(append(errs, err)...)
}

// replace kills the victims of a round and starts them again, in some rounds
// several times.
func (t *durabilityTest) replace(ctx context.Context, r *roundReport) error {
	if err := t.drawVictims(ctx, r); err != nil {
		return err
	}
	for _, i := range r.Victims {
		if err := t.hit(ctx, i); err != nil {
			return fmt.Errorf("kill data server %d: %w", i, err)
		}
	}
	if err := t.wait(ctx, time.Duration(t.rnd.Uint64n(uint64(t.away())))); err != nil {
		return err
	}
	if t.f.pause {
		return t.wake(ctx, r.Victims)
	}
	begin := time.Now()
	errs := make([]error, len(r.Victims))
	again := make([]int, len(r.Victims))
	for k := range again {
		for again[k] < killedStartsMax && t.rnd.Bool(0.25) {
			again[k]++
		}
		r.KilledStarts += again[k]
	}
	var all sync.WaitGroup
	for k, i := range r.Victims {
		all.Go(func() { errs[k] = t.startVictim(ctx, i, again[k]) })
	}
	all.Wait()
	r.StartS = time.Since(begin).Seconds()
	return errors.Join(errs...)
}

// drawVictims chooses the victims of a round, among the hosts that run.
func (t *durabilityTest) drawVictims(ctx context.Context, r *roundReport) error {
	var of []int
	for i := range t.f.size.servers {
		of = append(of, i)
	}
	if t.hosted() {
		for end := time.Now().Add(copiedTimeout); ; { // one that was taken over is started again
			var err error
			if of, err = t.running(ctx); err != nil {
				return err
			}
			if len(of) == t.f.size.servers {
				break
			}
			if time.Now().After(end) {
				return fmt.Errorf("of the %d hosts only %s run after %v", t.f.size.servers, joinInts(of), copiedTimeout)
			}
			if err := t.wait(ctx, 20*time.Millisecond); err != nil {
				return err
			}
		}
	}
	for len(r.Victims) < t.f.victims {
		if i := of[t.rnd.Intn(len(of))]; !slices.Contains(r.Victims, i) {
			r.Victims = append(r.Victims, i)
		}
	}
	return nil
}

// startVictim starts a data server again. It is killed some times while it
// starts.
func (t *durabilityTest) startVictim(ctx context.Context, i, kills int) error {
	if t.hosted() {
		return t.restartHost(ctx, i, kills)
	}
	for k := range kills {
		short, cancel := context.WithTimeout(ctx, t.took*time.Duration(k+1)/time.Duration(kills+1))
		err := t.s.StartServer(short, placement.Server(i)) // kills it when short ends
		cancel()
		if err == nil {
			return nil
		}
		if !errors.Is(err, context.DeadlineExceeded) || ctx.Err() != nil {
			return err
		}
	}
	return t.s.StartServer(ctx, placement.Server(i))
}

// awaitClients waits until every client has committed since all data servers serve.
func (t *durabilityTest) awaitClients(ctx context.Context, r *roundReport) error {
	left, err := t.awaitCommits(ctx, resumeTimeout)
	if left >= 0 {
		r.wrong(notCommitted, left, resumeTimeout)
	}
	return err
}

// away is the longest time for which victims are away.
func (t *durabilityTest) away() time.Duration {
	switch {
	case t.f.away > 0:
		return t.f.away
	case t.hosted():
		return awayHosts
	}
	return awayMax
}

// hit kills or stops a victim.
func (t *durabilityTest) hit(ctx context.Context, i int) error {
	switch {
	case !t.hosted():
		return t.s.KillServer(placement.Server(i))
	case !t.f.pause:
		return cluster.KillHost(ctx, t.dir, i)
	}
	return t.signal(ctx, i, syscall.SIGSTOP)
}

// wake lets victims that were stopped go on, and waits until each serves, again or
// as a host that another one has taken the data server from.
func (t *durabilityTest) wake(ctx context.Context, victims []int) error {
	for _, i := range victims {
		if err := t.signal(ctx, i, syscall.SIGCONT); err != nil {
			return fmt.Errorf("let data server %d go on: %w", i, err)
		}
	}
	return nil
}

// restartHost starts a host again. It is killed some times while it starts.
func (t *durabilityTest) restartHost(ctx context.Context, i, kills int) error {
	for k := range kills {
		started := make(chan error, 1)
		go func() {
			_, err := cluster.StartHost(ctx, t.dir, i)
			started <- err
		}()
		if err := t.wait(ctx, time.Second*time.Duration(k+1)/time.Duration(kills+1)); err != nil {
			return err
		}
		if err := cluster.KillHost(ctx, t.dir, i); err != nil {
			return err
		}
		<-started // it may have been killed in time or not
	}
	return t.startHost(ctx, i)
}

// awaitCopies waits until every data server has a copy in sync, and returns the
// processes that the data servers are in.
func (t *durabilityTest) awaitCopies(ctx context.Context) (pids []int, err error) {
	for end := time.Now().Add(copiedTimeout); ; {
		servers, err := t.s.db.ServerStats(ctx)
		lacks := -1
		if err == nil {
			pids = pids[:0]
			for i := range servers {
				if pids = append(pids, servers[i].PID); servers[i].Log == nil || servers[i].Log.CopiesInSync == 0 {
					lacks = i
				}
			}
			if lacks < 0 {
				return pids, nil
			}
		}
		if time.Now().After(end) {
			return nil, errors.Join(err, fmt.Errorf("data server %d has no copy in sync after %v", lacks, copiedTimeout))
		}
		if err := t.wait(ctx, 20*time.Millisecond); err != nil {
			return nil, err
		}
	}
}

// moved counts the data servers that are in other processes than they were, which
// are not new ones of their own hosts.
func (t *durabilityTest) moved(ctx context.Context, r *roundReport, were []int) error {
	for _, c := range t.clients {
		r.StallS = max(r.StallS, time.Duration(c.gap.Load()).Seconds())
	}
	servers, err := t.s.db.ServerStats(ctx)
	if err != nil {
		return err
	}
	for i := range servers {
		if pid := servers[i].PID; pid != were[i] && slices.Contains(were, pid) {
			r.Moved++
		}
	}
	return nil
}
