package metrics

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// Bounds of the HTTP servers.
const (
	connectionsMax  = 64
	scrapesMax      = 4 // at a time
	headerTimeout   = 5 * time.Second
	idleTimeout     = 2 * time.Minute
	responseTimeout = 30 * time.Second
	closeTimeout    = 2 * time.Second
	headerBytesMax  = 16 << 10
)

// ErrAddress reports an address on which the process cannot listen. Its text
// names the address and what was expected.
var ErrAddress = errors.New("bad address")

var buildInfo = gauge("drtmx_build_info", "Always 1; the labels identify this program.", "version", "commit", "go")

// Build identifies the program.
type Build struct{ Version, Commit, Go string }

// NewRegistry returns a registry with the collectors of the Go runtime, of the
// process and of build information, and with the collectors given.
func NewRegistry(b Build, own ...prometheus.Collector) (*prometheus.Registry, error) {
	r := prometheus.NewRegistry()
	all := append([]prometheus.Collector{
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}), b,
	}, own...)
	for _, c := range all {
		if err := r.Register(c); err != nil {
			return nil, fmt.Errorf("metrics: %w", err)
		}
	}
	return r, nil
}

// Describe implements prometheus.Collector.
func (Build) Describe(ch chan<- *prometheus.Desc) { ch <- buildInfo.desc }

// Collect implements prometheus.Collector.
func (b Build) Collect(ch chan<- prometheus.Metric) {
	send(ch, buildInfo, 1, b.Version, b.Commit, b.Go)
}

// Endpoint is a listening HTTP server.
type Endpoint struct {
	l      net.Listener
	server *http.Server
	done   chan struct{}
}

// Listen opens an endpoint at host:port, to be served by Serve or ServePprof.
// It returns ErrAddress if the address is malformed or not available. If
// loopback is true, the address must be one of the loopback interface.
func Listen(addr string, loopback bool) (*Endpoint, error) {
	host, port, err := net.SplitHostPort(addr)
	if n, bad := strconv.Atoi(port); err != nil || bad != nil || n < 0 || n > 65535 {
		return nil, fmt.Errorf("%w %q: want host:port, such as 127.0.0.1:9464", ErrAddress, addr)
	}
	if loopback && !isLoopback(host) {
		return nil, fmt.Errorf("%w %q: want one of the loopback interface, such as 127.0.0.1:6060", ErrAddress, addr)
	}
	l, err := net.Listen("tcp", addr)
	if err != nil {
		var cause *net.OpError
		if errors.As(err, &cause) {
			err = cause.Err
		}
		return nil, fmt.Errorf("%w %q: want an address of this machine that is free: %w", ErrAddress, addr, err)
	}
	return &Endpoint{l: newLimited(l, connectionsMax), done: make(chan struct{})}, nil
}

// isLoopback reports whether a host stands for this machine only.
func isLoopback(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

// Addr returns the address; if the given port was 0, it has the port that the
// kernel chose.
func (e *Endpoint) Addr() string { return e.l.Addr().String() }

// Serve answers /metrics with the metrics of r and /healthz with 200. It
// answers /readyz with 200 if ready returns nil, otherwise with 503 and the
// error in one line. It returns at once.
func (e *Endpoint) Serve(r *prometheus.Registry, ready func() error) {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(r, promhttp.HandlerOpts{MaxRequestsInFlight: scrapesMax, ErrorHandling: promhttp.ContinueOnError}))
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { line(w, http.StatusOK, "ok") })
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		if err := ready(); err != nil {
			line(w, http.StatusServiceUnavailable, err.Error())
			return
		}
		line(w, http.StatusOK, "ok")
	})
	e.serve(mux, responseTimeout)
}

// line writes a response of one line, whatever the text.
func line(w http.ResponseWriter, status int, text string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(status)
	lines := strings.FieldsFunc(text, func(r rune) bool { return r == '\n' || r == '\r' })
	fmt.Fprintln(w, strings.Join(lines, "; "))
}

func (e *Endpoint) serve(h http.Handler, limit time.Duration) {
	e.server = newHTTPServer(h, limit)
	go func() {
		defer close(e.done)
		_ = e.server.Serve(e.l) // ends with Close
	}()
}

func newHTTPServer(h http.Handler, limit time.Duration) *http.Server {
	return &http.Server{
		Handler: h, ReadHeaderTimeout: headerTimeout, ReadTimeout: headerTimeout, WriteTimeout: limit,
		IdleTimeout: idleTimeout, MaxHeaderBytes: headerBytesMax,
	}
}

// Close waits a short time for running requests and stops the server.
func (e *Endpoint) Close() error {
	if e.server == nil {
		return e.l.Close()
	}
	ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
	defer cancel()
	if err := e.server.Shutdown(ctx); err != nil {
		_ = e.server.Close() // the grace period is over
	}
	<-e.done
	return nil
}

// limited is a listener that bounds the number of open connections.
type limited struct {
	net.Listener
	slots chan struct{}
	over  chan struct{}
	once  sync.Once
}

func newLimited(l net.Listener, n int) *limited {
	return &limited{Listener: l, slots: make(chan struct{}, n), over: make(chan struct{})}
}

// Accept waits for a free slot and then for the next connection.
func (l *limited) Accept() (net.Conn, error) {
	select {
	case l.slots <- struct{}{}:
	case <-l.over:
		return nil, net.ErrClosed
	}
	c, err := l.Listener.Accept()
	if err != nil {
		<-l.slots
		return nil, err
	}
	return &limitedConn{Conn: c, release: sync.OnceFunc(func() { <-l.slots })}, nil
}

// Close ends Accept.
func (l *limited) Close() error {
	l.once.Do(func() { close(l.over) })
	return l.Listener.Close()
}

type limitedConn struct {
	net.Conn
	release func()
}

func (c *limitedConn) Close() error {
	defer c.release()
	return c.Conn.Close()
}
