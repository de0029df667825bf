package tcp

import (
	"cmp"
	"crypto/tls"
	"fmt"
	"time"

	"drtmx/rdma"
	"drtmx/rdma/internal/provide"
)

// Defaults of Options.
const (
	DefaultKeepAlive        = 15 * time.Second
	DefaultStallTimeout     = 30 * time.Second
	DefaultHandshakeTimeout = 10 * time.Second
	DefaultMaxConnections   = 4096
)

// DefaultPlainRole lets any peer that reaches a plain-text port do everything,
// the commit protocol of data servers included. Plain text is for experiments,
// and is refused beyond loopback unless Options.Insecure is set.
const DefaultPlainRole = rdma.RoleServer

// MaxPollers bounds Options.Pollers.
const MaxPollers = 64

// Options configure a provider. The zero value is usable on loopback.
type Options struct {
	// TLS names the certificates of this process. Without it connections are
	// in plain text, which is refused beyond loopback addresses.
	TLS *TLS
	// Insecure allows plain text with any address: everyone who reaches the port
	// can read the data, and so can everyone on the path.
	Insecure bool
	// PlainRole is the role of every peer that connects to an endpoint of this
	// provider in plain text, where peers have no identity; rdma.RoleNone means
	// DefaultPlainRole.
	PlainRole rdma.Role
	// Pollers is the number of goroutines that serve the RPCs of an endpoint;
	// 0 means 1, which handles all requests one after the other.
	Pollers int
	// Rights returns the most that a client may do to regions. Readers of all
	// tables may always read; other clients get no access. nil allows all that the
	// regions were registered with.
	Rights func(Identity) rdma.Access
	// KeepAlive is how long a connection may be silent before a ping; 0 means
	// DefaultKeepAlive.
	KeepAlive time.Duration
	// StallTimeout is how long a peer may leave data unread; 0 means
	// DefaultStallTimeout.
	StallTimeout time.Duration
	// HandshakeTimeout bounds the handshake of a client; 0 means
	// DefaultHandshakeTimeout.
	HandshakeTimeout time.Duration
	// MaxConnections bounds the connections of clients to an endpoint, and
	// separately those of data servers; 0 means DefaultMaxConnections.
	MaxConnections int
}

// Provider is the provider "tcp".
type Provider struct {
	opts   Options
	server *tls.Config // nil without TLS
	client *tls.Config
}

var _ rdma.Provider = (*Provider)(nil)

// New returns a provider. It fails for options out of range, and with
// ErrCertificateFile for a file that it cannot use.
func New(o Options) (*Provider, error) {
	var err error
	if o.Pollers, err = provide.PollersOf(o.Pollers, MaxPollers); err != nil {
		return nil, fmt.Errorf("tcp: %w", err)
	}
	if o.MaxConnections < 0 || o.KeepAlive < 0 || o.StallTimeout < 0 || o.HandshakeTimeout < 0 {
		return nil, fmt.Errorf("tcp: bounds of connections and times must not be negative: %w", rdma.ErrUnsupported)
	}
	o.MaxConnections = cmp.Or(o.MaxConnections, DefaultMaxConnections)
	o.PlainRole = cmp.Or(o.PlainRole, DefaultPlainRole)
	o.KeepAlive = cmp.Or(o.KeepAlive, DefaultKeepAlive)
	o.StallTimeout = cmp.Or(o.StallTimeout, DefaultStallTimeout)
	o.HandshakeTimeout = cmp.Or(o.HandshakeTimeout, DefaultHandshakeTimeout)
	p := &Provider{opts: o}
	if o.TLS != nil {
		if p.server, p.client, err = o.TLS.configs(); err != nil {
			return nil, err
		}
	}
	return p, nil
}

// Name returns "tcp".
func (p *Provider) Name() string { return "tcp" }
