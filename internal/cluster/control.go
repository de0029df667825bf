package cluster

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"time"

	"drtmx/rdma"
)

// Operations of the control socket. A connection carries one request, a line
// of JSON, and its reply. After opWatch it stays open, until a second reply
// gives the reason for which the servers ended.
const (
	opWatch = "watch"
	opReset = "reset"
	opStop  = "stop"
	opKill  = "kill"  // of a host
	opEnd   = "end"   // of a host, which stops
	opStart = "start" // of a host
)

type controlRequest struct {
	Op   string `json:"op"`
	Host int    `json:"host,omitempty"`
}

type reply struct {
	Error string `json:"error,omitempty"`
	Info  *Info  `json:"info,omitempty"`
	Lost  string `json:"lost,omitempty"`
	Keeps bool   `json:"keeps,omitempty"` // of opStart
}

// Bounds of the control socket.
const (
	requestBytesMax = 4 << 10
	controlTimeout  = 5 * time.Second
	resetTimeout    = startTimeout + 2*closeTimeout
	watchersMax     = 1024
)

// watcher is an attached process.
type watcher struct{ lost chan string }

func (s *supervisor) accept(ctx context.Context, l net.Listener, conns interface{ Go(func()) }) {
	slots := make(chan struct{}, watchersMax)
	for {
		c, err := l.Accept()
		if err != nil {
			return // closed
		}
		select {
		case slots <- struct{}{}:
		default:
			c.Close()
			continue
		}
		conns.Go(func() {
			defer func() { <-slots }()
			defer c.Close()
			s.serveConn(ctx, c)
		})
	}
}

func (s *supervisor) serveConn(ctx context.Context, c net.Conn) {
	_ = c.SetReadDeadline(time.Now().Add(controlTimeout))
	stop := context.AfterFunc(ctx, func() { _ = c.SetReadDeadline(time.Now()) })
	line, err := bufio.NewReaderSize(c, requestBytesMax).ReadSlice('\n')
	var q controlRequest
	if !stop() || err != nil || json.Unmarshal(line, &q) != nil {
		return
	}
	_ = c.SetReadDeadline(time.Time{})
	if q.Op == opWatch {
		s.watch(ctx, c)
		return
	}
	r := request{op: q.Op, host: q.Host, answer: make(chan reply, 1)}
	select {
	case s.requests <- r:
		_ = writeLine(c, <-r.answer)
	case <-ctx.Done():
	}
}

// watch keeps an attached process informed for as long as it lives, or until ctx ends with
// the cluster.
func (s *supervisor) watch(ctx context.Context, c net.Conn) {
	w := &watcher{lost: make(chan string, 1)}
	s.mu.Lock()
	if s.mu.watchers == nil {
		s.mu.watchers = map[*watcher]struct{}{}
	}
	s.mu.watchers[w] = struct{}{}
	info := s.mu.info
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		delete(s.mu.watchers, w)
		s.mu.Unlock()
	}()
	if writeLine(c, reply{Info: &info}) != nil {
		return
	}
	gone := make(chan struct{})
	go func() {
		defer close(gone)
		_, _ = c.Read(make([]byte, 1)) // returns when the watcher ends, or is closed
	}()
	select {
	case why := <-w.lost:
		_ = writeLine(c, reply{Lost: why})
	case <-gone:
	case <-ctx.Done():
		_ = writeLine(c, reply{Lost: s.whyOver(w)})
	}
	c.Close()
	<-gone
}

// whyOver returns the reason for which the data servers have ended. A watcher that came
// after the others had their notice has none of its own.
func (s *supervisor) whyOver(w *watcher) string {
	select {
	case why := <-w.lost:
		return why
	default:
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return cmp.Or(s.mu.over, ErrStopped).Error()
}

// call sends one request to the supervisor of dir.
func call(ctx context.Context, dir string, q controlRequest, limit time.Duration) (net.Conn, *bufio.Reader, *reply, error) {
	info, err := readInfo(dir)
	if err != nil {
		return nil, nil, nil, err
	}
	d := net.Dialer{Timeout: controlTimeout}
	c, err := d.DialContext(ctx, "unix", filepath.Join(dir, controlFile))
	if err != nil {
		return nil, nil, nil, fmt.Errorf("%w: what ran in %s (pid %d, started %s) is gone and left its files",
			ErrStale, dir, info.Supervisor, info.Started.Format(time.DateTime))
	}
	if err := checkPeer(c); err != nil {
		c.Close()
		return nil, nil, nil, fmt.Errorf("%w: %s: its control socket: %w", ErrDir, dir, err)
	}
	_ = c.SetDeadline(time.Now().Add(limit))
	stop := context.AfterFunc(ctx, func() { _ = c.SetDeadline(time.Now()) })
	in := bufio.NewReader(c)
	r, err := exchange(c, in, q)
	if !stop() {
		c.Close()
		return nil, nil, nil, context.Cause(ctx)
	}
	if err != nil {
		c.Close()
		return nil, nil, nil, fmt.Errorf("%w: its supervisor (pid %d, directory %s) does not answer: %w",
			ErrStale, info.Supervisor, dir, err)
	}
	if r.Error != "" {
		c.Close()
		return nil, nil, nil, errors.New(r.Error)
	}
	_ = c.SetDeadline(time.Time{})
	return c, in, r, nil
}

func exchange(c net.Conn, in *bufio.Reader, q controlRequest) (*reply, error) {
	if err := writeLine(c, q); err != nil {
		return nil, err
	}
	return readReply(in)
}

func readReply(in *bufio.Reader) (*reply, error) {
	line, err := in.ReadBytes('\n')
	if err != nil {
		return nil, err
	}
	var r reply
	return &r, json.Unmarshal(line, &r)
}

// attach finds the cluster that runs in dir: ErrNoCluster, ErrVersion or
// ErrStale if it cannot.
func attach(ctx context.Context, dir string, o *ConnectOptions) (*Cluster, error) {
	conn, in, r, err := call(ctx, dir, controlRequest{Op: opWatch}, controlTimeout)
	if err != nil {
		return nil, err
	}
	var c *Cluster
	if r.Info != nil && r.Info.Members != nil {
		c, err = o.connectHosts(ctx, dir, r.Info)
	} else {
		c, err = r.cluster(dir, o.provider)
	}
	if err != nil {
		conn.Close()
		return nil, err
	}
	watched := make(chan struct{})
	leave := c.stop
	c.stop = func() error {
		conn.Close()
		<-watched
		return leave()
	}
	go func() {
		defer close(watched)
		why := "the supervisor of the cluster is gone"
		if r, err := readReply(in); err == nil && r.Lost != "" {
			why = r.Lost
		}
		c.fail(lostError(why), nil)
	}()
	return c, nil
}

// cluster builds a Cluster from the reply of the supervisor of dir.
func (r *reply) cluster(dir string, provider func(fabric string) (rdma.Provider, error)) (*Cluster, error) {
	if r.Info == nil {
		return nil, fmt.Errorf("%w: the supervisor in %s sent no description", ErrVersion, dir)
	}
	abs, err := filepath.Abs(dir) // as the data servers name their sockets
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrDir, err)
	}
	p, err := provider(r.Info.Fabric)
	if err != nil {
		return nil, err
	}
	c := newCluster(p, nil)
	c.info, c.where = r.Info, dir
	for _, s := range r.Info.Servers {
		c.addrs, c.pids = append(c.addrs, s.Address(abs)), append(c.pids, s.PID)
	}
	return c, nil
}

// lostError restores the error that crossed a socket as text.
func lostError(text string) error {
	prefix := ErrLost.Error() + ": "
	if len(text) > len(prefix) && text[:len(prefix)] == prefix {
		text = text[len(prefix):]
	}
	return fmt.Errorf("%w: %s", ErrLost, text)
}

// Reset empties the cluster in dir: its data servers are replaced by new ones.
func Reset(ctx context.Context, dir string) (*Info, error) {
	conn, _, r, err := call(ctx, dir, controlRequest{Op: opReset}, resetTimeout)
	if err != nil {
		return nil, err
	}
	conn.Close()
	return r.Info, nil
}

// Describe asks the supervisor of dir for a description of its cluster. The
// error wraps ErrNoCluster, ErrVersion or ErrStale.
func Describe(ctx context.Context, dir string) (*Info, error) {
	conn, _, r, err := call(ctx, dir, controlRequest{Op: opWatch}, controlTimeout)
	if err != nil {
		return nil, err
	}
	conn.Close()
	if r.Info == nil {
		return nil, fmt.Errorf("%w: the supervisor in %s sent no description", ErrVersion, dir)
	}
	return r.Info, nil
}

// Stop ends the cluster in dir and the process that serves it, and waits until
// it has left the directory.
func Stop(ctx context.Context, dir string) error {
	conn, in, _, err := call(ctx, dir, controlRequest{Op: opStop}, closeTimeout+controlTimeout)
	if err != nil {
		return err
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(controlTimeout))
	_, _ = in.ReadByte() // end of file
	for deadline := time.Now().Add(controlTimeout); time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		if _, err := os.Stat(filepath.Join(dir, lockFile)); errors.Is(err, fs.ErrNotExist) {
			return nil
		}
	}
	return fmt.Errorf("%w: the cluster in %s was stopped, but its supervisor has not left within %v", ErrBusy, dir, controlTimeout)
}
