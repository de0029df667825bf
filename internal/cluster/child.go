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

	"drtmx/rdma"
)

// Descriptors that a child process inherits.
const (
	lifelineFD = 3 // read end: one line of childConfig, then nothing until the parent is gone
	reportFD   = 4 // write end: one line of childReport
	logFD      = 5 // where the log goes, if there is to be one
)

// closeTimeout bounds how long a data server may take to close, at a child
// and, a little longer, at its parent.
const closeTimeout = 3 * time.Second

// childConfig is the configuration that a parent sends to a child.
type childConfig struct {
	Format   int      `json:"format"`
	Index    int      `json:"index"`
	Addrs    []string `json:"addrs"`
	Size     Size     `json:"size"`
	Workload string   `json:"workload"`
	Log      *Log     `json:"log,omitempty"`   // its file is logFD
	Debug    string   `json:"debug,omitempty"` // a socket
	Secret   []byte   `json:"secret"`          // of the cluster
}

// childReport is the child's answer: it serves, or it failed to start.
type childReport struct {
	Error string `json:"error,omitempty"`
}

// RunChild runs the data server of a child process that Start has started,
// until the parent has ended or ctx ends. lookup returns the workload of a name.
// debug, which may be nil, serves the debug socket that the parent has asked
// for, until the listener is closed.
func RunChild(ctx context.Context, p rdma.Provider, lookup func(name string) (Workload, error), debug func(net.Listener)) error {
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
	s, err := startChild(p, line, lookup, debug)
	if err != nil {
		_ = writeLine(report, childReport{Error: err.Error()})
		return err
	}
	if err := writeLine(report, childReport{}); err != nil {
		return errors.Join(err, closeWithin(s, closeTimeout))
	}
	gone := make(chan struct{})
	go func() {
		defer close(gone)
		_, _ = io.Copy(io.Discard, in) // nothing is sent: this ends with the parent
	}()
	select {
	case <-gone:
	case <-ctx.Done():
	}
	return closeWithin(s, closeTimeout)
}

// isPipe reports whether a descriptor is a pipe, such as a parent passes. In a
// process without such a parent the descriptor may belong to the Go runtime.
func isPipe(fd int) bool {
	var st unix.Stat_t
	return unix.Fstat(fd, &st) == nil && st.Mode&unix.S_IFMT == unix.S_IFIFO
}

func startChild(
	p rdma.Provider, line []byte, lookup func(string) (Workload, error), debug func(net.Listener),
) (dataServer, error) {
	var cfg childConfig
	if err := json.Unmarshal(line, &cfg); err != nil {
		return nil, fmt.Errorf("%w: configuration: %w", ErrOptions, err)
	}
	if cfg.Format != Format {
		return nil, fmt.Errorf("%w: parent speaks format %d, this binary %d (was it replaced while running?)",
			ErrOptions, cfg.Format, Format)
	}
	w, err := lookup(cfg.Workload)
	if err != nil {
		return nil, err
	}
	var log Log
	if cfg.Log != nil {
		log = *cfg.Log
		log.File = os.NewFile(logFD, "log")
	}
	rdma.SetSecret(p, cfg.Secret)
	c := serverConfig(w, cfg.Size, cfg.Index, cfg.Addrs)
	c.Provider, c.Log = p, log.Logger()
	s, err := startServer(c)
	if err != nil || cfg.Debug == "" || debug == nil {
		return s, err
	}
	l, err := net.Listen("unix", cfg.Debug)
	if err != nil {
		return nil, errors.Join(err, s.Close())
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		debug(privateListener{l})
	}()
	return &debugged{s, func() {
		l.Close()
		<-done
	}}, nil
}

// debugged is a data server with a debug socket.
type debugged struct {
	dataServer
	stop func()
}

// Close closes the server, and then the debug socket, through which a server
// that hangs in Close can be inspected.
func (d *debugged) Close() error {
	defer d.stop()
	return d.dataServer.Close()
}

// closeWithin closes a data server and waits for a bounded time: the process is
// about to exit, which frees everything it holds.
func closeWithin(s dataServer, limit time.Duration) error {
	done := make(chan error, 1)
	go func() { done <- s.Close() }()
	select {
	case err := <-done:
		return err
	case <-time.After(limit):
		return fmt.Errorf("cluster: data server did not close within %v", limit)
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
