package tcp

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"syscall"

	"drtmx/internal/mem"
	"drtmx/rdma"
	"drtmx/rdma/internal/provide"
)

// Dial connects to an endpoint at host:port. Besides the errors of every fabric,
// it fails with ErrInsecure for an address beyond loopback without TLS, and with
// ErrAuth and the reason if one side does not trust the other.
//
// In plain text the connection is that of a loader, see As.
func (p *Provider) Dial(ctx context.Context, addr string) (rdma.Conn, error) {
	return p.dial(ctx, addr, rdma.RoleLoader)
}

func (p *Provider) dial(ctx context.Context, addr string, role rdma.Role) (rdma.Conn, error) {
	nc, err := (&net.Dialer{}).DialContext(ctx, "tcp", addr)
	if err != nil {
		if ended := provide.Ended(ctx); ended != nil {
			return nil, fmt.Errorf("tcp: dial %q: %w", addr, ended)
		}
		return nil, fmt.Errorf("tcp: dial %q: %w", addr, rdma.DialError(err))
	}
	c, err := p.greet(ctx, nc.(*net.TCPConn), addr, role)
	if err != nil {
		nc.Close()
		if ctx.Err() != nil {
			err = ctx.Err()
		}
		return nil, fmt.Errorf("tcp: dial %q: %w", addr, err)
	}
	return c, nil
}

// greet performs the handshake, TLS included, and receives the capabilities.
func (p *Provider) greet(ctx context.Context, nc *net.TCPConn, addr string, role rdma.Role) (*conn, error) {
	if err := p.mayTalk(nc.RemoteAddr()); err != nil {
		return nil, err
	}
	if err := tune(nc, &p.opts); err != nil {
		return nil, err
	}
	c := &conn{addr: addr, conn: nc, socket: nc, in: make([]byte, inputWords*mem.WordBytes)}
	c.watch.socket, c.watch.keepAlive = nc, p.opts.KeepAlive
	if err := c.watch.extend(); err != nil {
		return nil, err
	}
	if !c.watch.begin(ctx) {
		return nil, ctx.Err()
	}
	err := c.hello(p, role)
	c.watch.end()
	if err != nil {
		c.watch.stop()
		return nil, err
	}
	return c, nil
}

// hello is the client's part of the handshake.
func (c *conn) hello(p *Provider, role rdma.Role) error {
	if p.client != nil {
		if err := c.authenticate(p.client); err != nil {
			return err
		}
	}
	h := ourHello()
	h.role = role
	_, werr := c.conn.Write(h.encode()) // the server may have said why it reads no more
	h, err := readHello(c.conn)
	if err == nil && h.reason == reasonProve && role == rdma.RoleServer {
		proof := p.secret.Proof(p.Name(), h.nonce[:])
		_, werr = c.conn.Write(proof[:])
		h, err = readHello(c.conn)
	}
	if err != nil {
		return c.greetingError(errors.Join(err, werr))
	}
	if err := h.reason.err(); err != nil {
		return err
	}
	if why := h.check(); why != reasonNone {
		return why.err()
	}
	for range h.grants {
		if err := c.takeFirstGrant(); err != nil {
			return c.greetingError(err)
		}
	}
	return nil
}

// takeFirstGrant receives one of the grants that follow the welcome.
func (c *conn) takeFirstGrant() error {
	var b [(headerWords + grantWords) * mem.WordBytes]byte
	if _, err := io.ReadFull(c.conn, b[:]); err != nil {
		return err
	}
	f, err := decodeFrame(word(b[:]), word(b[8:]))
	if err != nil || f.kind != kindGrant {
		return errors.Join(errHandshake, err)
	}
	c.frame = f
	c.in, c.r, c.fill = append(c.in[:0], b[headerBytes:]...), 0, grantWords*mem.WordBytes
	defer func() { c.in, c.r, c.fill = c.in[:cap(c.in)], 0, 0 }()
	_, err = c.takeGrant()
	return err
}

// readHello reads a hello or a welcome.
func readHello(r io.Reader) (hello, error) {
	var b [helloBytes]byte
	if _, err := io.ReadFull(r, b[:]); err != nil {
		return hello{}, err
	}
	if b[0] == tlsHandshake {
		return hello{}, errSpeaksTLS
	}
	return decodeHello(b[:])
}

// tlsHandshake is the first byte from a client that uses TLS.
const tlsHandshake = 22

var errSpeaksTLS = fmt.Errorf("%w: TLS where plain text is spoken", errHandshake)

// greetingError returns, in one line, why a handshake failed.
func (c *conn) greetingError(err error) error {
	if refused := refusal(err); refused != nil {
		return refused
	}
	switch {
	case errors.Is(err, ErrAuth), errors.Is(err, errHandshake):
		return err
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, syscall.ECONNRESET), errors.Is(err, syscall.EPIPE):
		return fmt.Errorf("the server closed the connection during the handshake: %w", rdma.ErrPeerDown)
	}
	return fmt.Errorf("handshake: %w: %w", rdma.ErrPeerDown, err)
}
