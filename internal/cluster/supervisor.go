package cluster

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"drtmx/internal/placement"
	"drtmx/rdma/multi"
)

// startInDir starts a cluster in a runtime directory. The directory has files
// until the cluster ends, and none after that.
func startInDir(ctx context.Context, o StartOptions) (*Cluster, error) {
	dir, err := openDir(ctx, o.Dir)
	if err != nil {
		return nil, err
	}
	s := &supervisor{opts: o, dir: dir, log: o.Log.Logger(), requests: make(chan request), done: make(chan struct{})}
	s.mu.info = Info{
		Format: Format, Version: o.Version, Fabric: o.Provider.Name(), Workload: o.Workload.Name,
		Partitions: o.Partitions, DataDir: o.DataDir, Supervisor: os.Getpid(), Started: time.Now(),
	}
	s.opts.Addrs = nil
	for i := range o.Servers {
		s.mu.info.Servers = append(s.mu.info.Servers, o.server(i))
		s.opts.Addrs = append(s.opts.Addrs, s.mu.info.Servers[i].Address(dir.path))
	}
	if o.Hosts != nil {
		if err := s.takeHosts(); err != nil {
			dir.close()
			return nil, err
		}
	}
	l, err := listenPrivate(ctx, filepath.Join(dir.path, controlFile))
	if err != nil {
		err = errors.Join(fmt.Errorf("%w: %w", ErrDir, err), s.data.close())
		dir.close()
		return nil, err
	}
	if err := s.start(ctx); err != nil {
		l.Close()
		err = errors.Join(err, s.data.close())
		dir.close()
		return nil, err
	}
	life, end := context.WithCancel(context.Background())
	s.cluster = newCluster(o.Provider, s.opts.Addrs)
	s.cluster.stop = func() error {
		end()
		<-s.done
		return s.err
	}
	go s.run(life, end, privateListener{l})
	return s.cluster, nil
}

// server returns where data server i listens.
func (o *StartOptions) server(i int) (s ServerInfo) {
	fabrics := o.Fabrics
	switch {
	case len(fabrics) > 0:
	case o.Addrs != nil:
		fabrics = []string{multi.TCP}
	default:
		fabrics = []string{multi.Shm}
	}
	for _, name := range fabrics {
		switch name {
		case multi.Shm:
			s.Socket = socketName(placement.Server(i))
		case multi.TCP:
			s.Addr = o.Addrs[i]
		case multi.Verbs:
			s.Verbs = o.Addrs[i]
		}
	}
	return s
}

// listenPrivate listens on a socket that only its owner may connect to.
func listenPrivate(ctx context.Context, path string) (net.Listener, error) {
	lc := net.ListenConfig{Control: func(_, _ string, rc syscall.RawConn) error {
		var err error
		cerr := rc.Control(func(fd uintptr) { err = unix.Fchmod(int(fd), 0o600) }) // the file's mode is the socket's at bind
		return errors.Join(cerr, err)
	}}
	return lc.Listen(ctx, "unix", path)
}

// supervisor owns the child processes and the control socket of a cluster in a
// directory. Its own goroutine alone starts and stops the children; connections
// send it requests.
type supervisor struct {
	opts     StartOptions
	dir      *runtimeDir
	cluster  *Cluster // what Start returned
	children *Cluster // replaced when the cluster is emptied
	log      *slog.Logger
	requests chan request
	done     chan struct{} // closed when the directory is left
	err      error         // of stopping the children, once done is closed

	// Of hosts; nil without.
	fleet     *fleet // replaced with the children
	data      *hostsData
	stopStore func() error // nil while no store runs

	mu struct { // what connections read
		sync.Mutex
		info     Info
		watchers map[*watcher]struct{}
		over     error // why the data servers have ended; nil until then, and if life has ended
	}
}

type request struct {
	op     string
	host   int
	answer chan reply
}

// run serves the directory until life ends, a data server is lost, or another
// process stops the cluster.
func (s *supervisor) run(life context.Context, end func(), l net.Listener) {
	defer close(s.done)
	var conns sync.WaitGroup
	conns.Go(func() { s.accept(life, l, &conns) })
	why := s.serve(life)
	s.mu.Lock()
	s.mu.over = why
	s.mu.Unlock()
	if err := s.end(); !errors.Is(why, ErrLost) {
		s.err = err
	}
	if why != nil {
		s.cluster.fail(why, s.children.Output())
	}
	if errors.Is(why, ErrLost) && s.opts.OnLoss != nil {
		s.opts.OnLoss(why)
	}
	end()
	l.Close()
	conns.Wait()
	s.err = errors.Join(s.err, s.data.close())
	s.dir.close()
}

// end ends the data servers, and then the store in which hosts find each other. It
// may be called again.
func (s *supervisor) end() error {
	s.fleet.leave()
	s.fleet = nil
	return errors.Join(s.children.Close(), s.endStore())
}

// serve carries out requests until the cluster is to end. It returns why, nil if life
// has ended.
func (s *supervisor) serve(life context.Context) error {
	for {
		select {
		case <-life.Done():
			s.notify(ErrStopped)
			return nil
		case <-s.children.Lost():
			s.notify(s.children.Err())
			return s.children.Err()
		case <-s.children.emptying:
			if err := s.handle(life, request{op: opReset, answer: make(chan reply, 1)}); err != nil {
				return err
			}
		case e := <-s.fleet.news():
			s.fleet.take(e)
		case r := <-s.requests:
			if err := s.handle(life, r); err != nil {
				return err
			}
		}
	}
}

// handle carries out a request. An error ends the cluster.
func (s *supervisor) handle(life context.Context, r request) error {
	switch r.op {
	case opKill, opEnd, opStart:
		s.fleet.request(r)
		return nil
	case opStop:
		s.notify(ErrStopped)
		_ = s.end() // run keeps its error
		r.answer <- reply{}
		return ErrStopped
	case opReset:
		s.notify(errors.New("the cluster was emptied"))
		err := s.end()
		switch {
		case err != nil || s.opts.DataDir == "":
		case s.data != nil:
			err = s.data.remove()
		default:
			_, err = RemoveData(s.opts.DataDir)
		}
		if err == nil {
			err = s.start(life)
		}
		r.answer <- s.reply(err)
		return err
	}
	r.answer <- reply{Error: fmt.Sprintf("unknown request %q", r.op)}
	return nil
}

// start starts the data servers and publishes them.
func (s *supervisor) start(ctx context.Context) error {
	var hosts *fleet
	if s.opts.Hosts != nil {
		if err := s.startStore(ctx); err != nil {
			return err
		}
		hosts = newFleet(s, s.opts.Servers)
		s.opts.lenient = s.data.shape.Started
		s.opts.keeps = func(host int, keeps bool) { hosts.tell(hostEvent{host: host, goes: true, keeps: keeps}) }
		s.opts.ended = func(host int, why error) { hosts.tell(hostEvent{host: host, err: why}) }
	}
	c, err := startChildren(ctx, s.opts)
	if err != nil {
		return errors.Join(err, s.endStore())
	}
	s.children, s.fleet = c, hosts
	s.mu.Lock()
	s.mu.info.Generation++
	s.mu.info.Servers = append([]ServerInfo(nil), s.mu.info.Servers...)
	for i, pid := range c.PIDs() {
		s.mu.info.Servers[i].PID = pid
		if hosts != nil {
			s.mu.info.Servers[i].State = HostRuns
		}
	}
	info := s.mu.info
	s.mu.Unlock()
	if err := writeInfo(s.dir.path, &info); err != nil {
		return errors.Join(err, s.end())
	}
	if hosts != nil {
		if err := s.data.started(); err != nil {
			return errors.Join(err, s.end())
		}
		for i, why := range c.family.failed {
			if why != nil {
				hosts.failed(i, why)
			}
		}
	}
	if s.opts.Ready != nil {
		s.opts.Ready(*s.reply(nil).Info)
	}
	return nil
}

func (s *supervisor) reply(err error) reply {
	if err != nil {
		return reply{Error: err.Error()}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	info := s.mu.info
	return reply{Info: &info}
}

// notify sends all attached processes the reason for which their data servers
// ended.
func (s *supervisor) notify(why error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for w := range s.mu.watchers {
		select {
		case w.lost <- why.Error():
		default: // an earlier notice is pending
		}
	}
}
