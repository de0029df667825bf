package tcp

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"time"

	"drtmx/internal/certs"
	"drtmx/rdma"
)

// Errors of authentication. Those about credentials wrap ErrAuth.
var (
	// ErrAuth reports that one side did not accept the other's credentials.
	ErrAuth = errors.New("tcp: not authenticated")
	// ErrNoCertificate reports a client without a certificate, which the server
	// requires.
	ErrNoCertificate = fmt.Errorf("%w: no certificate", ErrAuth)
	// ErrUnknownCA reports a certificate that no trusted authority has signed.
	ErrUnknownCA = fmt.Errorf("%w: certificate of an unknown authority", ErrAuth)
	// ErrExpired reports a certificate outside its validity.
	ErrExpired = fmt.Errorf("%w: certificate expired or not yet valid", ErrAuth)
	// ErrServerName reports a server whose certificate is for another name.
	ErrServerName = fmt.Errorf("%w: certificate for another server", ErrAuth)
	// ErrInsecure reports plain text with an address beyond loopback.
	ErrInsecure = errors.New("tcp: plain text is refused beyond loopback (give certificates, or allow it explicitly)")
	// ErrCertificateFile reports a file without the expected contents.
	ErrCertificateFile = errors.New("tcp: bad certificate file")
)

// TLS names PEM files. Both sides authenticate: CA signs servers and clients.
type TLS struct {
	CA   string // certificates of the authorities trusted
	Cert string // this process's certificate, followed by intermediate ones
	Key  string // its private key
	// ServerName is the name that servers' certificates must have; empty means
	// the host that was dialled.
	ServerName string
}

// Identity is the identity of a client, as the server knows it.
type Identity struct {
	Addr string // of its socket
	// Identity is from its certificate: the name is the subject's common name,
	// the role the first organizational unit, and the tables are URIs
	// urn:drtmx:table:NAME among the alternative names. A certificate without
	// one of the roles of rdma has rdma.RoleNone. In plain text the peer
	// states its role: see Provider.As.
	rdma.Identity
}

// configs reads the files.
func (o *TLS) configs() (server, client *tls.Config, err error) {
	for _, f := range []struct{ what, path string }{{"CA", o.CA}, {"certificate", o.Cert}, {"key", o.Key}} {
		if f.path == "" {
			return nil, nil, fmt.Errorf("%w: no %s file is named; TLS needs a CA, a certificate and a key", ErrCertificateFile, f.what)
		}
	}
	pem, err := os.ReadFile(o.CA)
	if err != nil {
		return nil, nil, fmt.Errorf("%w: CA: %w", ErrCertificateFile, err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(pem) {
		return nil, nil, fmt.Errorf("%w: CA %s holds no PEM certificate", ErrCertificateFile, o.CA)
	}
	cert, err := tls.LoadX509KeyPair(o.Cert, o.Key)
	if err != nil {
		return nil, nil, fmt.Errorf("%w: certificate %s with key %s: %w", ErrCertificateFile, o.Cert, o.Key, err)
	}
	server = &tls.Config{
		MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{cert},
		ClientCAs: pool, ClientAuth: tls.RequireAndVerifyClientCert,
		SessionTicketsDisabled: true, // every connection shows its certificate
	}
	client = &tls.Config{
		MinVersion: tls.VersionTLS13, RootCAs: pool, ServerName: o.ServerName,
		// The certificate is sent whatever authorities the server names, because
		// the server's error says best what is wrong with it.
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &cert, nil },
	}
	return server, client, nil
}

// authenticate performs the server's part of TLS.
func (c *serverConn) authenticate(cfg *tls.Config, t *transport, deadline time.Time) error {
	tc := tls.Server(t, cfg)
	c.conn = tc
	err := tc.HandshakeContext(context.Background()) // the socket has a deadline
	if derr := t.drain(); err == nil {
		err = derr
	}
	if err != nil {
		var record tls.RecordHeaderError
		if errors.As(err, &record) && string(record.RecordHeader[:]) == string(magic[:len(record.RecordHeader)]) {
			refuse(t, t, reasonTLS)
		}
		var lost net.Error
		if refusal(err) == nil && (errors.As(err, &lost) || errors.Is(err, io.EOF)) {
			return err // the connection's fault, not the certificates'
		}
		return fmt.Errorf("%w: %w", ErrAuth, err)
	}
	leaf := tc.ConnectionState().PeerCertificates[0]
	c.id.Identity = rdma.Identity{Name: leaf.Subject.CommonName, Tables: certs.Tables(leaf)}
	if ou := leaf.Subject.OrganizationalUnit; len(ou) > 0 {
		c.id.Role, _ = rdma.ParseRole(ou[0]) // another unit is no role
	}
	return t.SetDeadline(deadline)
}

// authenticate performs the client's part of TLS.
func (c *conn) authenticate(cfg *tls.Config) error {
	if cfg.ServerName == "" {
		host, _, err := net.SplitHostPort(c.addr)
		if err != nil {
			return err
		}
		cfg = cfg.Clone()
		cfg.ServerName = host
	}
	tc := tls.Client(c.socket, cfg)
	c.conn = tc
	if err := tc.HandshakeContext(context.Background()); err != nil { // the watch ends it
		return c.greetingError(err)
	}
	return nil
}

// Alerts of TLS (RFC 8446, 6.2) that are about credentials.
const (
	alertBadCertificate      = tls.AlertError(42)
	alertCertificateExpired  = tls.AlertError(45)
	alertUnknownCA           = tls.AlertError(48)
	alertCertificateRequired = tls.AlertError(116)
)

// refusal translates an error of TLS that is about credentials, and returns nil
// for others.
func refusal(err error) error {
	var remote *net.OpError
	var record tls.RecordHeaderError
	var name x509.HostnameError
	var ca x509.UnknownAuthorityError
	var invalid x509.CertificateInvalidError
	switch {
	case errors.As(err, &remote) && remote.Op == "remote error":
		return alertError(remote.Err)
	case errors.As(err, &name):
		return fmt.Errorf("%w: %w", ErrServerName, name)
	case errors.As(err, &ca):
		return fmt.Errorf("%w: the server's certificate is not signed by our CA", ErrUnknownCA)
	case errors.As(err, &invalid) && invalid.Reason == x509.Expired:
		return fmt.Errorf("%w: the peer's: %s", ErrExpired, invalid.Detail)
	case errors.As(err, &invalid):
		return fmt.Errorf("%w: %w", ErrAuth, invalid)
	case errors.As(err, &record):
		return fmt.Errorf("%w: the peer does not speak TLS", ErrAuth)
	}
	return nil
}

// alertError translates an alert. crypto/tls does not export its type.
func alertError(err error) error {
	switch err.Error() {
	case alertCertificateRequired.Error():
		return fmt.Errorf("%w: the server wants one", ErrNoCertificate)
	case alertUnknownCA.Error():
		return fmt.Errorf("%w: the server does not trust ours", ErrUnknownCA)
	case alertCertificateExpired.Error():
		return fmt.Errorf("%w: the server refuses ours", ErrExpired)
	case alertBadCertificate.Error():
		return fmt.Errorf("%w: the server refuses our certificate", ErrAuth)
	}
	return fmt.Errorf("%w: the peer answers with %w", ErrAuth, err)
}
