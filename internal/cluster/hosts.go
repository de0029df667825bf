package cluster

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"drtmx/internal/member"
)

// Hosts make each data server of a cluster in a runtime directory a host: a process
// with a data directory of its own, which finds the others in a store of members.
// A process that ends is started again, and the cluster goes on.
type Hosts struct {
	// Members runs the store of members at a socket, or at Store, with its data in a
	// directory, until stop is called.
	Members func(ctx context.Context, dir, at string) (stop func() error, err error)
	// Store, if set, is the host:port of the store, instead of a socket in the runtime
	// directory: for hosts with networks of their own.
	Store string
	// Command, if set, changes the argument list of the process of a host. What it
	// starts must become the host, and not start it.
	Command func(host int, command []string) []string
	// Lease is how long the lease of a host lasts; 0 means DefaultLease.
	Lease time.Duration
}

// States of a host, in ServerInfo.
const (
	HostRuns   = "runs"
	HostStarts = "starts"  // it does not serve yet
	HostKeeps  = "keeps"   // another host has its data server; it keeps copies until that comes back
	HostEnds   = "ends"    // it stops, as EndHost has asked
	HostEnded  = "ended"   // by itself; it is started again after a pause
	HostKilled = "killed"  // by KillHost; StartHost starts it again
	HostStops  = "stopped" // by EndHost; StartHost starts it again
	HostIdle   = "idle"    // it ended because another host has its data server
)

// The store of members of a cluster of hosts.
const (
	membersName = "drtmx"  // of the cluster in it
	storeDir    = "etcd"   // in the runtime directory, for its user only
	storeSocket = "socket" // in storeDir
)

// Pauses before a host that has ended is started again. They double with each end
// until it has served for as long as restartAfter.
const (
	restartPauseMin = time.Second
	restartPauseMax = 30 * time.Second
	restartAfter    = time.Minute
)

// ErrHost reports a request about a host that cannot be carried out.
var ErrHost = errors.New("cluster: host")

// fleet manages the processes of a supervisor's hosts. All methods but tell are for the
// supervisor's goroutine.
type fleet struct {
	s      *supervisor
	events chan hostEvent
	over   chan struct{} // closed by leave: events are no longer received
	wg     sync.WaitGroup
	of     []hostState
}

// hostState is what the supervisor knows of a host's process.
type hostState struct {
	state  string
	cancel context.CancelCauseFunc // ends the start that is under way; nil if none is
	kill   bool                    // the start that is under way ends as a kill
	stops  bool                    // with kill: the host is to be stopped, not killed
	asked  []chan reply            // requests that wait for the end of the start
	since  time.Time               // when it began to serve
	pause  time.Duration           // before the next start
	again  *time.Timer             // begins the next start; nil if none is due
}

// hostEvent is news of a host: it has ended, or a start has.
type hostEvent struct {
	host    int
	started bool  // a start has ended, with err
	due     bool  // a start is due
	keeps   bool  // it keeps copies; the start goes on
	goes    bool  // its data server has gone, and it keeps copies, or is back
	stopped bool  // it has stopped, as it was asked
	err     error // why it ended
}

func newFleet(s *supervisor, n int) *fleet {
	f := &fleet{s: s, events: make(chan hostEvent), over: make(chan struct{}), of: make([]hostState, n)}
	for i := range f.of {
		f.of[i] = hostState{state: HostRuns, since: time.Now(), pause: restartPauseMin}
	}
	return f
}

// tell passes an event to the supervisor's goroutine.
func (f *fleet) tell(e hostEvent) {
	select {
	case f.events <- e:
	case <-f.over:
	}
}

// news returns the channel of events. It is nil, and never ready, without hosts.
func (f *fleet) news() <-chan hostEvent {
	if f == nil {
		return nil
	}
	return f.events
}

// leave cancels the starts that are under way and answers the requests that wait for
// them. It leaves the processes as they are.
func (f *fleet) leave() {
	if f == nil {
		return
	}
	close(f.over)
	for i := range f.of {
		h := &f.of[i]
		if h.cancel != nil {
			h.cancel(errLeaves)
		}
		h.hold()
		h.answer(reply{Error: ErrStopped.Error()})
	}
	f.wg.Wait()
}

// hold cancels the next start of a host that has ended.
func (h *hostState) hold() {
	if h.again != nil {
		h.again.Stop()
		h.again = nil
	}
}

func (h *hostState) answer(r reply) {
	for _, a := range h.asked {
		a <- r
	}
	h.asked = nil
}

// child is the process of a host.
func (f *fleet) child(host int) *child { return f.s.children.family.child(ownServer(host)) }

// set records the state of a host, and publishes it.
func (f *fleet) set(host int, state string, pid int) {
	f.of[host].state = state
	s := f.s
	s.mu.Lock()
	s.mu.info.Servers = slices.Clone(s.mu.info.Servers)
	s.mu.info.Servers[host].State = state
	s.mu.info.Servers[host].PID = pid
	info := s.mu.info
	s.mu.Unlock()
	if err := writeInfo(s.dir.path, &info); err != nil {
		s.log.Warn("the description of the cluster is out of date", "error", err)
	}
}

// begin starts a host, without blocking the supervisor's goroutine.
func (f *fleet) begin(host int) {
	c := f.s.children
	f.await(host, HostStarts, 0, func(ctx context.Context, keeps func()) error { return c.startServer(ctx, ownServer(host), keeps) })
}

// keep waits for a host that keeps copies, without blocking the supervisor's goroutine.
func (f *fleet) keep(host int) {
	c, ch := f.s.children, f.child(host)
	f.await(host, HostKeeps, ch.cmd.Process.Pid, func(ctx context.Context, keeps func()) error { return c.finish(ctx, ch, true, keeps) })
}

func (f *fleet) await(host int, state string, pid int, start func(ctx context.Context, keeps func()) error) {
	h := &f.of[host]
	h.hold()
	ctx, cancel := context.WithCancelCause(context.Background())
	h.cancel, h.kill, h.stops = cancel, false, false
	f.set(host, state, pid)
	f.wg.Go(func() {
		defer cancel(nil)
		err := start(ctx, func() { f.tell(hostEvent{host: host, keeps: true}) })
		f.tell(hostEvent{host: host, started: true, err: err})
	})
}

// take handles an event.
func (f *fleet) take(e hostEvent) {
	h := &f.of[e.host]
	switch {
	case e.due:
		if h.state == HostEnded {
			f.begin(e.host)
		}
	case e.goes:
		if h.runs() {
			state := HostRuns
			if e.keeps {
				state = HostKeeps
			}
			f.set(e.host, state, f.child(e.host).cmd.Process.Pid)
		}
	case e.stopped:
		f.set(e.host, HostStops, 0)
		f.s.log.Info("host stopped, as asked", "host", e.host)
		h.answer(reply{})
	case e.keeps:
		if !h.kill {
			f.set(e.host, HostKeeps, f.child(e.host).cmd.Process.Pid)
			h.answer(reply{Keeps: true})
		}
	case !e.started:
		if h.runs() && f.child(e.host).waitExit(0) {
			if time.Since(h.since) >= restartAfter {
				h.pause = restartPauseMin
			}
			f.retry(e.host, e.err)
		}
	case h.kill:
		h.cancel = nil
		if e.err == nil { // the start was faster than the kill
			_ = f.s.children.KillServer(ownServer(e.host))
		}
		state := HostKilled
		if h.stops {
			state = HostStops
		}
		f.set(e.host, state, 0)
		h.answer(reply{})
	case e.err != nil:
		h.cancel = nil
		h.answer(reply{Error: oneLine(e.err).Error()})
		f.failed(e.host, e.err)
	default:
		h.cancel, h.since = nil, time.Now()
		pid := f.s.children.PIDs()[e.host]
		f.set(e.host, HostRuns, pid)
		f.s.log.Info("host serves again", "host", e.host, "pid", pid)
		h.answer(f.s.reply(nil))
		if ch := f.child(e.host); ch.waitExit(0) { // the event of its end came before that of its start
			f.retry(e.host, ch.death())
		}
	}
}

// failed handles a failed start.
func (f *fleet) failed(host int, why error) {
	if errors.Is(why, errKeeps) {
		f.keep(host)
		return
	}
	if errors.Is(why, member.ErrElsewhere) {
		f.s.log.Warn("host has nothing to do: another one has its data server", "host", host, "reason", oneLine(why).Error())
		f.set(host, HostIdle, 0)
		return
	}
	f.retry(host, why)
}

// retry starts a host again after a pause.
func (f *fleet) retry(host int, why error) {
	h := &f.of[host]
	f.s.log.Warn("host ended, and is started again", "host", host, "reason", oneLine(why).Error(), "pause", h.pause.String())
	f.set(host, HostEnded, 0)
	h.again = time.AfterFunc(h.pause, func() { f.tell(hostEvent{host: host, due: true}) })
	h.pause = min(2*h.pause, restartPauseMax)
}

// request carries out a request about a host. It answers at once, or when a start
// has ended.
func (f *fleet) request(r request) {
	if f == nil {
		r.answer <- reply{Error: fmt.Sprintf("%v: the data servers of this cluster are not hosts, and the end of one is that of the cluster; want --replicas and a data directory without other copies", ErrHost)}
		return
	}
	if r.host < 0 || r.host >= len(f.of) {
		r.answer <- reply{Error: fmt.Sprintf("%v %d: want 0 to %d, a host of this cluster", ErrHost, r.host, len(f.of)-1)}
		return
	}
	h := &f.of[r.host]
	refuse := func(why string) { r.answer <- reply{Error: fmt.Sprintf("%v %d %s", ErrHost, r.host, why)} }
	switch {
	case h.state == HostEnds:
		refuse("stops")
	case r.op != opStart && (h.state == HostKilled || h.state == HostStops):
		refuse(fmt.Sprintf("was %s before, and does not run", h.state))
	case r.op == opEnd && h.state == HostKeeps && h.cancel != nil && !h.kill:
		h.kill, h.stops = true, true
		h.answer(reply{Error: fmt.Sprintf("%v %d was stopped while it kept copies", ErrHost, r.host)})
		h.asked = append(h.asked, r.answer)
		h.cancel(errStops)
	case r.op == opEnd && !h.runs():
		refuse("does not run, or starts: want it to run, so that it can stop")
	case r.op == opEnd:
		f.end(r)
	case r.op == opKill && h.cancel != nil:
		h.kill = true
		h.answer(reply{Error: fmt.Sprintf("%v %d was killed while it started", ErrHost, r.host)})
		h.asked = append(h.asked, r.answer)
		h.cancel(ErrStopped)
	case r.op == opKill:
		h.hold()
		if h.runs() {
			_ = f.s.children.KillServer(ownServer(r.host)) // its error says that it has ended already
		}
		f.set(r.host, HostKilled, 0)
		f.s.log.Info("host killed, as asked", "host", r.host)
		r.answer <- reply{}
	case h.state == HostRuns:
		refuse("runs already")
	case h.state == HostKeeps:
		refuse("runs already, and keeps copies until it has its data server back")
	case h.kill && h.cancel != nil:
		refuse("is being killed")
	default:
		h.asked = append(h.asked, r.answer)
		if h.cancel == nil {
			f.begin(r.host)
		}
	}
}

// runs reports whether a host's process runs and has served.
func (h *hostState) runs() bool {
	return h.state == HostRuns || h.state == HostKeeps && h.cancel == nil
}

// end stops a host, without blocking the supervisor's goroutine.
func (f *fleet) end(r request) {
	h := &f.of[r.host]
	h.asked = append(h.asked, r.answer)
	f.set(r.host, HostEnds, f.child(r.host).cmd.Process.Pid)
	f.wg.Go(func() {
		_ = f.s.children.endServer(ownServer(r.host)) // in any case it has ended
		f.tell(hostEvent{host: r.host, stopped: true})
	})
}

// EndHost stops the process of a host of the cluster in dir, as the end of the cluster
// does, and returns when it has ended. The error is as that of KillHost.
func EndHost(ctx context.Context, dir string, host int) error {
	_, err := askAbout(ctx, dir, opEnd, host, 2*closeTimeout+controlTimeout)
	return err
}

// KillHost ends the process of a host of the cluster in dir with SIGKILL. The error
// is that of the supervisor, or wraps ErrNoCluster, ErrVersion or ErrStale.
func KillHost(ctx context.Context, dir string, host int) error {
	_, err := askAbout(ctx, dir, opKill, host, closeTimeout+controlTimeout)
	return err
}

// StartHost starts the process of a host of the cluster in dir that has ended, and
// returns when it serves, or when it keeps copies because another host has its data
// server; serves says which. The error is as that of KillHost.
func StartHost(ctx context.Context, dir string, host int) (serves bool, err error) {
	r, err := askAbout(ctx, dir, opStart, host, recoverTimeout)
	return err == nil && !r.Keeps, err
}

func askAbout(ctx context.Context, dir, op string, host int, limit time.Duration) (*reply, error) {
	conn, _, r, err := call(ctx, dir, controlRequest{Op: op, Host: host}, limit)
	if err != nil {
		return nil, err
	}
	return r, conn.Close()
}

// takeHosts takes the data directory of the hosts. Their addresses name the fabric,
// like those in a store of members.
func (s *supervisor) takeHosts() (err error) {
	s.opts.members = s.opts.Hosts.membersAt(s.dir.path)
	s.mu.info.Members = s.opts.members
	for i := range s.opts.Addrs {
		s.opts.Addrs[i] = s.mu.info.Servers[i].offers(s.dir.path).String()
	}
	s.data, err = openHosts(s.opts.Size)
	return err
}

// startStore runs the store of members. Nobody but this user may reach it: its
// socket is in a directory that is the user's alone.
func (s *supervisor) startStore(ctx context.Context) (err error) {
	dir := filepath.Join(s.dir.path, storeDir)
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, os.ErrExist) {
		return fmt.Errorf("%w: %w", ErrDir, err)
	}
	if err := os.Chmod(dir, 0o700); err != nil {
		return fmt.Errorf("%w: %w", ErrDir, err)
	}
	s.stopStore, err = s.opts.Hosts.Members(ctx, MembersDir(s.opts.DataDir), s.opts.members.Endpoints[0])
	return err
}

// endStore ends the store of members, if one runs.
func (s *supervisor) endStore() error {
	if s.stopStore == nil {
		return nil
	}
	stop := s.stopStore
	s.stopStore = nil
	return stop()
}

// membersAt returns where the store of members of the hosts in a runtime directory is.
func (h *Hosts) membersAt(dir string) *member.Location {
	at := cmp.Or(h.Store, filepath.Join(dir, storeDir, storeSocket))
	return &member.Location{Endpoints: []string{at}, Name: membersName}
}
