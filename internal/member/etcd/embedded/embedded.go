// Package embedded runs an etcd server in this process, for clusters that have
// none. It is a single member: as durable as its directory, and available only
// while its process runs.
package embedded

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"go.etcd.io/etcd/server/v3/embed"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"google.golang.org/grpc"

	"drtmx/internal/member"
	"drtmx/internal/member/etcd"
)

// ErrStart reports an etcd server that did not start.
var ErrStart = errors.New("member: etcd did not start")

// name is the name of the only member.
const name = "drtmx"

// peerURL is the address that the member announces to peers. It has no peers
// and does not listen there. The address is stored in the directory and so must
// not change.
const peerURL = "http://127.0.0.1:2380"

// Options describe a server.
type Options struct {
	// Dir holds its data. It is created if it does not exist.
	Dir string
	// Listen is the address for clients: an IP address or localhost, and a
	// port. Port 0 takes any free port. An absolute path is that of a socket;
	// any user that may enter its directory may connect.
	Listen string
	// TLS, if set, are certificates; clients must have one of the same
	// authority. nil means plain text, which beyond loopback needs Insecure.
	TLS      *etcd.TLS
	Insecure bool
	// Log gets warnings and errors while it serves; nil means none.
	Log *slog.Logger

	// Volatile skips syncs to disk: acknowledged changes may be lost if the
	// machine stops.
	Volatile bool
	// Tick is etcd's heartbeat; 0 means etcd's default, 100 ms. Elections take
	// ten ticks, and no lease is shorter than fifteen.
	Tick time.Duration
}

// Server is a running etcd server. Methods are safe for concurrent use.
type Server struct {
	etcd     *embed.Etcd
	endpoint string
	serving  atomic.Bool // until then problems are in the error of Start

	once sync.Once
	mu   struct {
		sync.Mutex
		grpc []*grpc.Server
	}
}

// Start runs a server and waits until it serves. The error wraps ErrStart,
// member.ErrInput, member.ErrTLS or the context's.
func Start(ctx context.Context, o Options) (s *Server, err error) {
	s = &Server{}
	c, err := s.config(&o)
	if err != nil {
		return nil, err
	}
	defer func() {
		if r := recover(); r != nil { // etcd's logger reports a fatal error by panic
			s, err = nil, fmt.Errorf("%w: %v", ErrStart, r)
		}
	}()
	if s.etcd, err = embed.StartEtcd(c); err != nil {
		return nil, fmt.Errorf("%w in %s at %s: %w", ErrStart, o.Dir, o.Listen, err)
	}
	s.endpoint = s.etcd.Clients[0].Addr().String()
	select {
	case <-s.etcd.Server.ReadyNotify():
		s.serving.Store(true)
		return s, nil
	case err = <-s.etcd.Err():
		err = fmt.Errorf("%w in %s at %s: %w", ErrStart, o.Dir, o.Listen, err)
	case <-s.etcd.Server.StopNotify():
		err = fmt.Errorf("%w in %s at %s: it stopped", ErrStart, o.Dir, o.Listen)
	case <-ctx.Done():
		err = context.Cause(ctx)
	}
	return nil, errors.Join(err, s.Close())
}

// config translates Options to etcd's configuration.
func (s *Server) config(o *Options) (*embed.Config, error) {
	if o.Dir == "" {
		return nil, fmt.Errorf("%w: etcd needs a directory for its data", member.ErrInput)
	}
	listen, err := resolve(o)
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(o.Dir, 0o700); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrStart, err)
	}
	c := embed.NewConfig()
	c.Name, c.Dir = name, o.Dir
	at := url.URL{Scheme: "http", Host: listen}
	switch {
	case filepath.IsAbs(listen):
		at = url.URL{Scheme: "unix", Path: listen}
	case o.TLS != nil:
		if err := o.TLS.Check(); err != nil {
			return nil, err
		}
		at.Scheme = "https"
		c.ClientTLSInfo.CertFile, c.ClientTLSInfo.KeyFile = o.TLS.Cert, o.TLS.Key
		c.ClientTLSInfo.TrustedCAFile, c.ClientTLSInfo.ClientCertAuth = o.TLS.CA, true
		c.TlsMinVersion = "TLS1.3"
	}
	c.ListenClientUrls = []url.URL{at}
	c.AdvertiseClientUrls = c.ListenClientUrls
	peer, err := url.Parse(peerURL)
	if err != nil {
		return nil, err
	}
	c.ListenPeerUrls, c.AdvertisePeerUrls = nil, []url.URL{*peer}
	c.InitialCluster = c.InitialClusterFromName(name)
	// The token lets handles detect that a directory was emptied. It has an
	// effect only if there is no data yet.
	var token [16]byte
	_, _ = rand.Read(token[:]) // never fails
	c.InitialClusterToken = hex.EncodeToString(token[:])
	c.EnableGRPCGateway = false
	c.UnsafeNoFsync = o.Volatile
	c.AutoCompactionMode, c.AutoCompactionRetention = "revision", "1000"
	if o.Tick > 0 {
		c.TickMs = uint(o.Tick.Milliseconds())
		c.ElectionMs = 10 * c.TickMs
	}
	logger := newLogger(o.Log, &s.serving)
	c.ZapLoggerBuilder = embed.NewZapLoggerBuilder(logger)
	c.ServiceRegister = func(g *grpc.Server) {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.mu.grpc = append(s.mu.grpc, g)
	}
	return c, nil
}

// resolve checks and resolves the listening address.
func resolve(o *Options) (string, error) {
	if filepath.IsAbs(o.Listen) {
		if o.TLS != nil {
			return "", fmt.Errorf("%w: etcd at %.80q: a socket has no certificates", member.ErrInput, o.Listen)
		}
		return o.Listen, nil
	}
	host, port, err := net.SplitHostPort(o.Listen)
	if host == "localhost" {
		host = "127.0.0.1"
	}
	ip := net.ParseIP(host)
	if _, portErr := strconv.ParseUint(port, 10, 16); err != nil || ip == nil || portErr != nil {
		return "", fmt.Errorf("%w: etcd at %.80q: want an IP address or localhost, and a port", member.ErrInput, o.Listen)
	}
	if !ip.IsLoopback() && o.TLS == nil && !o.Insecure {
		return "", fmt.Errorf("%w: etcd at %s: want certificates, a loopback address, or the insecure option", member.ErrInput, o.Listen)
	}
	return net.JoinHostPort(host, port), nil
}

// Endpoint returns the host:port for clients, or the path of the socket.
func (s *Server) Endpoint() string { return s.endpoint }

// closeTimeout bounds how long Close waits for connections. Etcd reads the first bytes of a
// connection before it knows what it is for, and waits without a bound for a client that sends
// none, such as a probe that only connects.
const closeTimeout = 3 * time.Second

// Close stops the server. It cancels waiting requests, such as watches. A connection that has
// sent nothing yet lives on until its client, or this process, ends.
func (s *Server) Close() error {
	s.once.Do(func() {
		s.serving.Store(false)
		closed := make(chan struct{})
		go func() {
			defer close(closed)
			s.mu.Lock()
			defer s.mu.Unlock()
			for _, g := range s.mu.grpc {
				g.Stop() // etcd would wait for watches to end
			}
			s.etcd.Close()
		}()
		select {
		case <-closed:
		case <-time.After(closeTimeout):
			s.etcd.Server.Stop() // which etcd does after it has waited: it closes the data
		}
	})
	return nil
}

// newLogger passes etcd's warnings on. An error that is fatal to etcd becomes a
// panic, which Start turns into an error, instead of ending the process.
func newLogger(to *slog.Logger, on *atomic.Bool) *zap.Logger {
	var c zapcore.Core = zapcore.NewNopCore()
	if to != nil {
		c = &core{to: to, on: on}
	}
	return zap.New(c, zap.WithFatalHook(zapcore.WriteThenPanic))
}

// core writes records of zap to slog.
type core struct {
	to     *slog.Logger
	on     *atomic.Bool
	fields []zapcore.Field
}

func (c *core) Enabled(l zapcore.Level) bool { return l >= zapcore.WarnLevel && c.on.Load() }

func (c *core) With(fields []zapcore.Field) zapcore.Core {
	return &core{c.to, c.on, append(c.fields[:len(c.fields):len(c.fields)], fields...)}
}

func (c *core) Check(e zapcore.Entry, checked *zapcore.CheckedEntry) *zapcore.CheckedEntry {
	if c.Enabled(e.Level) {
		return checked.AddCore(e, c)
	}
	return checked
}

func (c *core) Write(e zapcore.Entry, fields []zapcore.Field) error {
	m := zapcore.NewMapObjectEncoder()
	for _, f := range append(c.fields[:len(c.fields):len(c.fields)], fields...) {
		f.AddTo(m)
	}
	attrs := make([]any, 0, 2*len(m.Fields))
	for _, k := range slices.Sorted(maps.Keys(m.Fields)) {
		attrs = append(attrs, k, m.Fields[k])
	}
	level := slog.LevelWarn
	if e.Level >= zapcore.ErrorLevel {
		level = slog.LevelError
	}
	c.to.Log(context.Background(), level, "etcd: "+e.Message, attrs...)
	return nil
}

func (c *core) Sync() error { return nil }
