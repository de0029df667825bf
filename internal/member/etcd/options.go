package etcd

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"time"

	"drtmx/internal/clock"
	"drtmx/internal/member"
)

// defaultTimeout bounds a request if Options do not.
const defaultTimeout = 3 * time.Second

// Options locate the stored members of a cluster.
type Options struct {
	// Endpoints are host:port of one or more etcd servers, or absolute paths of
	// their sockets.
	Endpoints []string
	// Name is the name of the cluster.
	Name string
	// TLS, if set, are certificates for the connection; nil means plain text.
	TLS *TLS
	// Existing makes Open fail with member.ErrNoCluster unless a cluster of
	// that name exists.
	Existing bool
	// Timeout bounds each request; 0 means three seconds.
	Timeout time.Duration
	// Clock measures leases; nil means clock.Now.
	Clock clock.Source
}

// TLS names PEM files.
type TLS member.TLS

func (o *Options) check() error {
	if err := member.CheckName(o.Name); err != nil {
		return err
	}
	if len(o.Endpoints) == 0 {
		return fmt.Errorf("%w: no etcd servers, want host:port of at least one", member.ErrInput)
	}
	for _, e := range o.Endpoints {
		if isSocket(e) {
			continue
		}
		host, port, err := net.SplitHostPort(e)
		n, portErr := strconv.ParseUint(port, 10, 16)
		if err != nil || host == "" || portErr != nil || n == 0 || strings.ContainsAny(host, "/ \t") {
			return fmt.Errorf("%w: etcd server %.80q: want host:port", member.ErrInput, e)
		}
	}
	if o.Timeout < 0 {
		return fmt.Errorf("%w: timeout of %v", member.ErrInput, o.Timeout)
	}
	if o.Timeout == 0 {
		o.Timeout = defaultTimeout
	}
	return nil
}

// isSocket reports whether an endpoint is a socket in the file system.
func isSocket(endpoint string) bool { return strings.HasPrefix(endpoint, "/") }

// Client returns the TLS configuration of a client. The error wraps
// member.ErrTLS and names the file.
func (t *TLS) Client() (*tls.Config, error) {
	c, pool, err := t.load()
	if err != nil {
		return nil, err
	}
	return &tls.Config{MinVersion: tls.VersionTLS13, RootCAs: pool, Certificates: []tls.Certificate{c}, ServerName: t.ServerName}, nil
}

func (t *TLS) load() (tls.Certificate, *x509.CertPool, error) {
	bad := func(err error) (tls.Certificate, *x509.CertPool, error) {
		return tls.Certificate{}, nil, fmt.Errorf("%w: %w", member.ErrTLS, err)
	}
	for _, f := range []struct{ what, name string }{{"authority", t.CA}, {"certificate", t.Cert}, {"key", t.Key}} {
		if f.name == "" {
			return bad(fmt.Errorf("no file for the %s: TLS needs authority, certificate and key", f.what))
		}
	}
	text, err := os.ReadFile(t.CA)
	if err != nil {
		return bad(fmt.Errorf("authority: %w", err))
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(text) {
		return bad(fmt.Errorf("authority: %s holds no PEM certificate", t.CA))
	}
	c, err := tls.LoadX509KeyPair(t.Cert, t.Key)
	if err != nil {
		return bad(fmt.Errorf("certificate %s with key %s: %w", t.Cert, t.Key, err))
	}
	return c, pool, nil
}

// Check returns the error that Client would return.
func (t *TLS) Check() error {
	_, _, err := t.load()
	return err
}
