package cluster

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// ServeOptions describe a cluster that others attach to.
type ServeOptions struct {
	ProcessOptions
	// Dir is the runtime directory.
	Dir string
	// Fabrics are those to serve, by name: shm at sockets in Dir, and the
	// others at Addrs. Empty means shm, or tcp if there are Addrs.
	Fabrics []string
	// Version names the binary, for people.
	Version string
	// Ready, if set, is called whenever the cluster serves: at the start and
	// after every emptying.
	Ready func(Info)
	// Crashed, if set, is given the end of what a lost data server wrote to
	// its standard error, if it wrote anything.
	Crashed func(output []byte)
}

// Serve runs a cluster in a runtime directory until ctx ends or somebody asks
// it to stop (nil), or a data server is lost (ErrLost). It leaves no file.
func Serve(ctx context.Context, o ServeOptions) error {
	if err := o.check(); err != nil {
		return err
	}
	network := slices.ContainsFunc(o.Fabrics, func(name string) bool { return name != FabricShm })
	if (o.Addrs != nil || network) && len(o.Addrs) != o.Servers {
		return fmt.Errorf("%w: %d addresses for %d servers", ErrOptions, len(o.Addrs), o.Servers)
	}
	dir, err := openDir(o.Dir)
	if err != nil {
		return err
	}
	defer dir.close()
	s := &supervisor{opts: o, dir: dir, requests: make(chan request)}
	s.info = Info{
		Format: Format, Version: o.Version, Fabric: o.Provider.Name(), Workload: o.Workload,
		Partitions: o.Partitions, Supervisor: os.Getpid(), Started: time.Now(),
	}
	s.opts.Addrs = nil
	for i := range o.Servers {
		s.info.Servers = append(s.info.Servers, o.server(i))
		s.opts.Addrs = append(s.opts.Addrs, s.info.Servers[i].Address(dir.path))
	}
	listener, err := listenPrivate(ctx, filepath.Join(dir.path, controlFile))
	if err != nil {
		return fmt.Errorf("%w: %w", ErrDir, err)
	}
	return s.run(ctx, privateListener{listener})
}

// server is where a data server listens.
func (o *ServeOptions) server(i int) (s ServerInfo) {
	fabrics := o.Fabrics
	switch {
	case len(fabrics) > 0:
	case o.Addrs != nil:
		fabrics = []string{FabricTCP}
	default:
		fabrics = []string{FabricShm}
	}
	for _, name := range fabrics {
		switch name {
		case FabricShm:
			s.Socket = socketName(i)
		case FabricTCP:
			s.Addr = o.Addrs[i]
		case FabricVerbs:
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

// supervisor owns the children and the control socket. Its own goroutine
// alone starts and stops clusters; connections send it requests.
type supervisor struct {
	opts     ServeOptions
	dir      *runtimeDir
	requests chan request
	cluster  *Cluster

	mu       sync.Mutex // guards what follows, which connections read
	info     Info
	watchers map[*watcher]struct{}
}

type request struct {
	op     string
	answer chan reply
}

func (s *supervisor) run(ctx context.Context, l net.Listener) error {
	ctx, cancel := context.WithCancel(ctx)
	var conns sync.WaitGroup
	conns.Go(func() { s.accept(ctx, l, &conns) })
	defer conns.Wait()
	defer l.Close()
	defer cancel()
	if err := s.start(ctx); err != nil {
		return err
	}
	defer func() { _ = s.cluster.Close() }()
	for {
		select {
		case <-ctx.Done():
			s.tell("the cluster was stopped")
			return nil
		case <-s.cluster.Lost():
			err := s.cluster.Err()
			s.tell(err.Error())
			if out := s.cluster.Output(); len(out) > 0 && s.opts.Crashed != nil {
				s.opts.Crashed(out)
			}
			return err
		case r := <-s.requests:
			if stop, err := s.handle(ctx, r); stop || err != nil {
				return err
			}
		}
	}
}

// handle carries out a request; an error ends the supervisor.
func (s *supervisor) handle(ctx context.Context, r request) (stop bool, err error) {
	switch r.op {
	case opStop:
		s.tell("the cluster was stopped")
		err = s.cluster.Close()
		r.answer <- reply{}
		return true, err
	case opReset:
		s.tell("the cluster was emptied")
		err = s.cluster.Close()
		if err == nil {
			err = s.start(ctx)
		}
		r.answer <- s.reply(err)
		return false, err
	}
	r.answer <- reply{Error: fmt.Sprintf("unknown request %q", r.op)}
	return false, nil
}

// start starts the data servers and publishes them.
func (s *supervisor) start(ctx context.Context) error {
	c, err := StartProcesses(ctx, s.opts.ProcessOptions)
	if err != nil {
		return err
	}
	s.cluster = c
	s.mu.Lock()
	s.info.Generation++
	s.info.Servers = append([]ServerInfo(nil), s.info.Servers...)
	for i, pid := range c.PIDs() {
		s.info.Servers[i].PID = pid
	}
	info := s.info
	s.mu.Unlock()
	if err := writeInfo(s.dir.path, &info); err != nil {
		return errors.Join(err, c.Close())
	}
	if s.opts.Ready != nil {
		s.opts.Ready(info)
	}
	return nil
}

func (s *supervisor) reply(err error) reply {
	if err != nil {
		return reply{Error: err.Error()}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	info := s.info
	return reply{Info: &info}
}

// tell tells all who are attached that the servers they know are gone.
func (s *supervisor) tell(why string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for w := range s.watchers {
		select {
		case w.lost <- why:
		default: // it has been told already
		}
	}
}
