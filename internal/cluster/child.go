package cluster

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"drtmx/internal/hosting"
	"drtmx/internal/member"
	"drtmx/internal/placement"
	"drtmx/rdma"
	"drtmx/txn/stats"
)

// Descriptors that a child process inherits.
const (
	// read end: a line of childConfig; for a host, another line when all hosts have had
	// their chance to start; then nothing until the parent is gone
	lifelineFD = 3
	reportFD   = 4 // write end: lines of childReport
	logFD      = 5 // where the log goes, if there is to be one
)

// closeTimeout bounds how long a data server may take to close, at a child
// and, a little longer, at its parent.
const closeTimeout = 3 * time.Second

// childConfig is the configuration that a parent sends to a child.
type childConfig struct {
	Format   int              `json:"format"`
	Index    placement.Server `json:"index"`
	Addrs    []string         `json:"addrs"`
	Size     Size             `json:"size"`
	Workload string           `json:"workload"`
	Log      *Log             `json:"log,omitempty"`   // its file is logFD
	Debug    string           `json:"debug,omitempty"` // a socket
	Secret   []byte           `json:"secret"`          // of the cluster

	Supervised bool `json:"supervised,omitempty"` // the parent can empty the cluster

	Members *member.Location `json:"members,omitempty"` // of a host
	Lease   time.Duration    `json:"lease,omitempty"`
}

// childReport is the child's answer: it serves, or it failed to start. Further
// ones follow where there is a supervisor: the child asks it to empty the
// cluster.
type childReport struct {
	Error     string `json:"error,omitempty"`
	Elsewhere bool   `json:"elsewhere,omitempty"` // with Error: another host has the data server
	Keeps     bool   `json:"keeps,omitempty"`     // a host keeps copies, and does not serve yet, or not any more
	Serves    bool   `json:"serves,omitempty"`    // a host serves again, which kept copies after it had served
	Empty     bool   `json:"empty,omitempty"`

	Recovered  *stats.Recovery   `json:"recovered,omitempty"`  // before it served
	Recovering *stats.Recovering `json:"recovering,omitempty"` // it does not serve yet
}

// ChildOptions are what a child process brings along.
type ChildOptions struct {
	// Provider carries the verbs.
	Provider rdma.Provider
	// Lookup returns the workload of a name.
	Lookup func(name string) (Workload, error)
	// Debug, if set, serves the debug socket that the parent has asked for, until
	// the listener is closed.
	Debug func(net.Listener)
	// Members opens the store of the members of hosts; nil means that this program
	// cannot run one.
	Members OpenMembers
}

// RunChild runs the data server of a child process that Start has started. It returns
// when the parent has ended, when ctx ends, or when another instance has taken the
// place of a host.
func RunChild(ctx context.Context, o ChildOptions) error {
	if !isPipe(lifelineFD) || !isPipe(reportFD) {
		return fmt.Errorf("%w: not started as a data server's process", ErrOptions)
	}
	lifeline, report := os.NewFile(lifelineFD, "lifeline"), os.NewFile(reportFD, "report")
	defer lifeline.Close()
	defer report.Close()
	in := bufio.NewReader(lifeline)
	line, err := in.ReadBytes('\n')
	if err != nil {
		return fmt.Errorf("%w: not started as a data server's process: no configuration: %w", ErrOptions, err)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	settled := make(chan struct{})
	go func() {
		defer cancel()
		if _, err := in.ReadBytes('\n'); err == nil {
			close(settled)
		}
		_, _ = io.Copy(io.Discard, in) // nothing more is sent: this ends with the parent
	}()
	ready := make(chan struct{})
	s, err := startChild(ctx, &o, line, settled, func(keeps bool) {
		_ = writeLine(report, childReport{Keeps: keeps, Serves: !keeps})
	}, func() error {
		select {
		case <-ready:
			return writeLine(report, childReport{Empty: true})
		default: // its first report is that it serves
			return errors.New("the data server is starting")
		}
	}, func(r stats.Recovering) {
		_ = writeLine(report, childReport{Recovering: &r}) // if the parent is gone, the lifeline ends this process
	})
	if err != nil {
		_ = writeLine(report, childReport{Error: err.Error(), Elsewhere: errors.Is(err, member.ErrElsewhere)})
		return err
	}
	if err := writeLine(report, childReport{Recovered: recovered(s)}); err != nil {
		return errors.Join(err, closeWithin(s, closeTimeout))
	}
	close(ready)
	var why error
	select {
	case <-ctx.Done():
	case <-s.lost:
		why = s.why()
	}
	return errors.Join(why, closeWithin(s, closeTimeout))
}

// isPipe reports whether a descriptor is a pipe, such as a parent passes. In a
// process without such a parent the descriptor may belong to the Go runtime.
func isPipe(fd int) bool {
	var st unix.Stat_t
	return unix.Fstat(fd, &st) == nil && st.Mode&unix.S_IFMT == unix.S_IFIFO
}

// childServer is the data server of a child process.
type childServer struct {
	dataServer
	lost <-chan struct{} // of a host: closed when another instance has its place
	why  func() error    // of a host: the reason, once lost is closed
	stop []func() error  // closes what must end after the server
}

// Recovery is that of the data server.
func (c *childServer) Recovery() *stats.Recovery { return recovered(c.dataServer) }

// Close closes the server, and then the debug socket, through which a server
// that hangs in Close can be inspected.
func (c *childServer) Close() error {
	err := c.dataServer.Close()
	for _, stop := range c.stop {
		err = errors.Join(err, stop())
	}
	return err
}

func startChild(
	ctx context.Context, o *ChildOptions, line []byte, settled <-chan struct{}, keeping func(keeps bool), empty func() error,
	recovering func(stats.Recovering),
) (*childServer, error) {
	var cfg childConfig
	if err := json.Unmarshal(line, &cfg); err != nil {
		return nil, fmt.Errorf("%w: configuration: %w", ErrOptions, err)
	}
	if cfg.Format != Format {
		return nil, fmt.Errorf("%w: parent speaks format %d, this binary %d (was it replaced while running?)",
			ErrOptions, cfg.Format, Format)
	}
	w, err := o.Lookup(cfg.Workload)
	if err != nil {
		return nil, err
	}
	var log Log
	if cfg.Log != nil {
		log = *cfg.Log
		log.File = os.NewFile(logFD, "log")
	}
	rdma.SetSecret(o.Provider, cfg.Secret)
	if !cfg.Supervised {
		empty = nil
	}
	var s *childServer
	if cfg.Members != nil {
		s, err = o.host(ctx, &cfg, JoinOptions{
			Workload: w, Secret: cfg.Secret, Log: log.Logger(), Settled: settled, Recovering: recovering, Empty: empty, Return: true,
			Keeping: func() { keeping(true) }, Serving: func() { keeping(false) },
		})
	} else {
		c := serverConfig(w, cfg.Size, cfg.Index, cfg.Addrs)
		c.Provider, c.Log, c.Recovering = o.Provider, log.Logger(), recovering
		s = &childServer{}
		s.dataServer, err = startServer(c.Hosted(hosting.Options{Place: hosting.Place{Empty: empty}}))
	}
	if err != nil || cfg.Debug == "" || o.Debug == nil {
		return s, err
	}
	l, err := net.Listen("unix", cfg.Debug)
	if err != nil {
		return nil, errors.Join(err, s.Close())
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		o.Debug(privateListener{l})
	}()
	s.stop = append(s.stop, func() error {
		l.Close()
		<-done
		return nil
	})
	return s, nil
}

// host starts a data server as a host. j has what the configuration lacks.
func (o *ChildOptions) host(ctx context.Context, cfg *childConfig, j JoinOptions) (*childServer, error) {
	if o.Members == nil {
		return nil, fmt.Errorf("%w: this program cannot run hosts", ErrOptions)
	}
	f, err := fabricsOf(o.Provider)
	if err != nil {
		return nil, err
	}
	store, err := o.Members(ctx, cfg.Members)
	if err != nil {
		return nil, err
	}
	j.Size, j.Index, j.Provider, j.Store, j.Addr, j.Lease = cfg.Size, cfg.Index, f, store, cfg.Addrs[cfg.Index], cfg.Lease
	j.Waiting = func(text string) { j.Log.Info("waiting for members", "server", cfg.Index, "reason", text) }
	m, err := Join(ctx, j)
	if err != nil {
		return nil, errors.Join(oneLine(err), store.Close())
	}
	return &childServer{dataServer: m, lost: m.Lost(), why: m.Err, stop: []func() error{store.Close}}, nil
}

// errNotClosed reports a data server that hangs. Its memory may still be served.
var errNotClosed = errors.New("cluster: data server did not close")

// closeWithin closes a data server and waits for a bounded time: the process is
// about to exit, which frees everything it holds.
func closeWithin(s dataServer, limit time.Duration) error {
	done := make(chan error, 1)
	go func() { done <- s.Close() }()
	select {
	case err := <-done:
		return err
	case <-time.After(limit):
		return fmt.Errorf("%w within %v", errNotClosed, limit)
	}
}

func writeLine(w io.Writer, v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return err
	}
	_, err = w.Write(append(b, '\n'))
	return err
}
