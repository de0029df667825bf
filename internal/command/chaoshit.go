package command

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"syscall"
	"time"

	"drtmx/internal/cluster"
)

// hitAll hits one host after the other until the time of the run is over, at least one.
// A host is hit when all others run, and every data server has all of its copies in sync.
func (t *chaosRun) hitAll(ctx context.Context) error {
	if err := t.ready(ctx, true); err != nil {
		return err
	}
	for (len(t.report.Events) == 0 || time.Since(t.began) < t.f.duration) && !t.report.bad() && t.stale.Load() == 0 {
		if err := t.wait(ctx, time.Duration(t.rnd.Uint64n(uint64(time.Second)))); err != nil {
			return err
		}
		if err := t.hit(ctx); err != nil {
			return err
		}
		// In some cases the next host is hit before the data server is back at its own.
		if err := t.ready(ctx, t.rnd.Bool(0.3)); err != nil {
			return err
		}
		if err := t.allCommit(ctx); err != nil {
			return err
		}
	}
	return nil
}

// ready waits until every host runs, or keeps copies, and every data server has its
// copies in sync. home also waits until each is at its own host.
func (t *chaosRun) ready(ctx context.Context, home bool) error {
	why := error(nil)
	for end := time.Now().Add(movedTimeout); ; {
		if why = t.isReady(ctx, home); why == nil {
			t.takeReturns()
			return nil
		}
		if time.Now().After(end) {
			t.report.wrong("the cluster is not complete again after %v: %v", movedTimeout, why)
			return nil
		}
		if err := t.wait(ctx, chaosTick); err != nil {
			return err
		}
	}
}

// isReady returns what is not as ready wants it.
func (t *chaosRun) isReady(ctx context.Context, home bool) error {
	states, err := t.states(ctx)
	if err != nil {
		return err
	}
	for i, s := range states {
		switch s.State {
		case cluster.HostRuns, cluster.HostKeeps:
		case cluster.HostEnded: // a host that was replaced ends; the supervisor would pause before it starts it
			_ = t.startHost(ctx, i)
			fallthrough
		default:
			return fmt.Errorf("host %d %s", i, s.State)
		}
	}
	servers, err := t.s.db.ServerStats(ctx)
	if err != nil {
		return err
	}
	for i := range servers {
		if l := servers[i].Log; l == nil || l.CopiesInSync < t.f.size.replicas-1 {
			return fmt.Errorf("data server %d lacks a copy in sync", i)
		}
	}
	state, err := t.s.Members(ctx)
	if err != nil || state.Map == nil {
		return errors.Join(err, errors.New("no map"))
	}
	for _, s := range state.Map.Servers {
		if r, alive := state.Registered(s.Index); !alive || r.Instance != s.Instance {
			return fmt.Errorf("data server %d is not registered", s.Index)
		}
		if n := state.Map.Set(s.Index).Members.Count(); n < t.f.size.replicas {
			return fmt.Errorf("data server %d has %d of %d copies in sync", s.Index, n, t.f.size.replicas)
		}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	for i, host := range t.mu.away {
		if home && (host != i || t.mu.at[i].away != nil) {
			return fmt.Errorf("data server %d is at host %d", i, host)
		}
	}
	return nil
}

// takeReturns adds the returns of data servers to the last event.
func (t *chaosRun) takeReturns() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if n := len(t.report.Events); n > 0 {
		e := t.report.Events[n-1]
		e.Returned = append(e.Returned, t.mu.returns...)
	}
	t.mu.returns = nil
}

// allCommit waits until every client has committed since all data servers serve.
func (t *chaosRun) allCommit(ctx context.Context) error {
	left, err := t.awaitCommits(ctx, movedTimeout)
	if left >= 0 {
		t.report.wrong(notCommitted, left, movedTimeout)
	}
	return err
}

// hit does one thing to one host, and undoes it.
func (t *chaosRun) hit(ctx context.Context) (err error) {
	e := t.draw()
	if planned(e.Kind) {
		return t.plan(ctx, e)
	}
	stopStill, err := t.watchStill(ctx, e.Servers)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, stopStill()) }()
	if err := t.wait(ctx, time.Duration(t.rnd.Uint64n(uint64(200*time.Millisecond)))); err != nil {
		return err
	}
	before := t.still.Load()
	t.open(e)
	if err := t.strike(ctx, e); err != nil {
		return err
	}
	begin := time.Now()
	if err := t.awaitMoves(ctx, e); err != nil {
		return err
	}
	if err := t.undo(ctx, e); err != nil {
		return err
	}
	e.AwayS = time.Since(begin).Seconds()
	if err := t.awaitServed(ctx, e); err != nil {
		return err
	}
	t.late.Add(t.still.Load() - before)
	t.shut(e)
	t.overWith()
	t.report.Events = append(t.report.Events, e)
	t.line(e)
	return nil
}

// draw chooses a host and what to do to it: mostly one with data servers.
func (t *chaosRun) draw() *chaosEvent {
	e := &chaosEvent{AtS: time.Since(t.began).Seconds(), Kind: t.f.kinds[t.rnd.Intn(len(t.f.kinds))], Moved: []int{}, Stalls: []float64{}}
	t.mu.Lock()
	defer t.mu.Unlock()
	of := slices.Clone(t.mu.away) // a host with two data servers is as likely as two with one
	if t.rnd.Bool(0.1) {
		of = of[:0]
		for i := range t.f.size.servers {
			of = append(of, i)
		}
	}
	e.Host = of[t.rnd.Intn(len(of))]
	for server, host := range t.mu.away {
		if host == e.Host {
			e.Servers = append(e.Servers, server)
		}
	}
	if e.Kind == chaosCut {
		e.From = []string{cutAll, cutStore, cutHosts}[t.rnd.Intn(3)]
	}
	return e
}

// open begins to measure what the event does to the data servers of its host.
func (t *chaosRun) open(e *chaosEvent) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.mu.victim, t.mu.moved, t.mu.times.under = e.Host, []int{}, true
	for _, s := range e.Servers {
		t.mu.at[s].lost = &stall{from: time.Since(t.began)}
	}
}

// overWith says that the event is over.
func (t *chaosRun) overWith() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.mu.times.under, t.mu.times.over = false, time.Since(t.began)
}

// shut ends that, and notes what was measured.
func (t *chaosRun) shut(e *chaosEvent) {
	t.mu.Lock()
	defer t.mu.Unlock()
	e.Moved, t.mu.victim = t.mu.moved, -1
	for _, s := range e.Servers {
		if slices.Contains(e.Moved, s) {
			e.Stalls = append(e.Stalls, t.mu.at[s].lost.longest.Seconds())
		}
		t.mu.at[s].lost = nil
	}
}

// strike does to the host what the event says.
func (t *chaosRun) strike(ctx context.Context, e *chaosEvent) error {
	switch e.Kind {
	case chaosKill:
		if err := cluster.KillHost(ctx, t.dir, e.Host); err != nil {
			return fmt.Errorf("kill host %d: %w", e.Host, err)
		}
		return nil
	case chaosPause:
		return t.signalVictim(ctx, e.Host, syscall.SIGSTOP)
	}
	return t.network.cut(e.Host, e.From)
}

// undo starts the host, lets it go on, or connects it again.
func (t *chaosRun) undo(ctx context.Context, e *chaosEvent) error {
	switch e.Kind {
	case chaosKill:
		if err := t.startHost(ctx, e.Host); err != nil {
			return fmt.Errorf("start host %d: %w", e.Host, err)
		}
		return nil
	case chaosPause:
		return t.signalVictim(ctx, e.Host, syscall.SIGCONT)
	}
	return t.network.heal(e.Host)
}

// awaitMoves waits while the host is away: in most cases until its data servers were
// taken over and commit again, and then a little longer.
func (t *chaosRun) awaitMoves(ctx context.Context, e *chaosEvent) error {
	longer := time.Duration(t.rnd.Uint64n(uint64(hostLease)))
	switch {
	case e.From == cutHosts: // it keeps its lease, and goes on without its copies
		return t.wait(ctx, cutCopiesMin+longer)
	case t.rnd.Bool(0.15): // about as long as a lease
		return t.wait(ctx, longer*3/2)
	}
	if err := t.awaitCommit(ctx, e); err != nil {
		return err
	}
	return t.wait(ctx, longer)
}

// awaitCommit waits until the data servers of the event commit at another host.
func (t *chaosRun) awaitCommit(ctx context.Context, e *chaosEvent) error {
	for end := time.Now().Add(movedTimeout); ; {
		left := t.notMoved(e)
		if left < 0 {
			return nil
		}
		if time.Now().After(end) {
			t.report.wrong("data server %d does not commit %v after the %s of host %d at %.1f s", left, movedTimeout, e.Kind, e.Host, e.AtS)
			return nil
		}
		if err := t.wait(ctx, chaosTick); err != nil {
			return err
		}
	}
}

// notMoved is a data server of the event that was not taken over, or has not committed
// since, -1 if there is none. Nobody can take over one that had just come to the host:
// the map says that no copy of it is in sync.
func (t *chaosRun) notMoved(e *chaosEvent) int {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, s := range e.Servers {
		if t.mu.away[s] == e.Host && t.mu.alone[s] {
			continue
		}
		if t.mu.away[s] == e.Host || t.mu.at[s].lost.commits == 0 {
			return s
		}
	}
	return -1
}

// awaitServed waits until the data servers of the event have committed since it was
// undone: one may have been about to be taken over.
func (t *chaosRun) awaitServed(ctx context.Context, e *chaosEvent) error {
	undone := time.Since(t.began)
	for end := time.Now().Add(movedTimeout); ; {
		left := -1
		t.mu.Lock()
		for _, s := range e.Servers {
			if t.mu.at[s].last <= undone {
				left = s
			}
		}
		t.mu.Unlock()
		switch {
		case left < 0:
			return nil
		case time.Now().After(end):
			t.report.wrong("data server %d does not commit %v after the %s of host %d at %.1f s was over", left, movedTimeout, e.Kind, e.Host, e.AtS)
			return nil
		}
		if err := t.wait(ctx, chaosTick); err != nil {
			return err
		}
	}
}

// line prints an event for people.
func (t *chaosRun) line(e *chaosEvent) {
	what := e.Kind
	if e.From != "" {
		what += " from " + e.From
	}
	has := "no data server"
	if len(e.Servers) > 0 {
		has = "data server " + joinInts(e.Servers)
	}
	how := "taken over"
	if planned(e.Kind) {
		how = "moved"
	}
	took := "none was " + how
	if len(e.Moved) > 0 {
		took = fmt.Sprintf("%s %s", joinInts(e.Moved), how)
		for i, s := range e.Stalls {
			took += fmt.Sprintf("%s %.2f s", map[bool]string{true: ", without a commit for", false: " and"}[i == 0], s)
		}
	}
	fmt.Fprintf(t.people, "%7.1f s    %s of host %d with %s, away for %.2f s: %s\n", e.AtS, what, e.Host, has, e.AwayS, took)
}
