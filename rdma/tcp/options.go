package tcp

import (
	"cmp"
	"context"
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

// DefaultPlainRole lets any peer that reaches a plain-text port do what clients
// may. Only peers that know the secret of the cluster are data servers. Plain text
// is for experiments and closed networks, and is refused beyond loopback unless
// Options.Insecure is set.
const DefaultPlainRole = rdma.RoleLoader

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
	// PlainRole is the most that a peer may be that connects to an endpoint of this
	// provider in plain text and proves nothing; rdma.RoleNone means
	// DefaultPlainRole. See SetSecret.
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
	secret provide.Secret // of the cluster
	server *tls.Config    // nil without TLS
	client *tls.Config
}

var (
	_ rdma.Provider     = (*Provider)(nil)
	_ rdma.Impersonator = (*Provider)(nil)
	_ rdma.Keyed        = (*Provider)(nil)
)

// SetSecret sets the secret that only the data servers of a cluster know. In plain
// text the endpoints of this provider require a proof of it from peers that dial as
// data servers, and the provider gives that proof when it dials as one. Before
// SetSecret the provider has a random secret, so that only the provider itself can
// dial its endpoints as a data server. With TLS certificates say who is one.
// SetSecret must be called before Listen and Dial.
//
// The secret does not travel, and keeps a client from being taken for a data
// server. It does not keep a network out that reads or changes what is sent.
func (p *Provider) SetSecret(secret []byte) { p.secret.Set(secret) }

// As returns the provider with another role for its dials in plain text. The name
// is not carried. Dials with a restriction to tables fail, because nothing tells
// peers apart. With TLS the certificate has the role, and As changes nothing.
func (p *Provider) As(who rdma.Identity) rdma.Provider {
	if p.client != nil {
		return p
	}
	return &member{p, who}
}

// member is a provider whose dials have a role.
type member struct {
	*Provider
	who rdma.Identity
}

// Dial is Provider.Dial in the member's role.
func (m *member) Dial(ctx context.Context, addr string) (rdma.Conn, error) {
	if m.who.Restricted() {
		return nil, fmt.Errorf("tcp: dial %q as %v: peers in plain text cannot be distinguished: %w", addr, &m.who, rdma.ErrUnsupported)
	}
	return m.dial(ctx, addr, m.who.Role)
}

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
