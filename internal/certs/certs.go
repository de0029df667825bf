// Package certs makes certificates for experiments: an authority, and the
// certificates that it signs for servers and clients. A cluster in production
// has an authority of its own, whose key is kept elsewhere.
//
// The organizational unit of the subject is the role of its holder, one of
// those below. A server's certificate also serves to dial other servers. A
// client's has its name as common name, and may be restricted to some tables,
// each a URI urn:drtmx:table:NAME among the subject's alternative names. Keys
// are ECDSA over P-256.
package certs

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"net/url"
	"strings"
	"time"
)

// Roles in certificates, as the organizational unit of the subject.
const (
	RoleReader = "reader" // reads
	RoleWriter = "writer" // and commits and calls procedures
	RoleLoader = "loader" // and loads in bulk
	RoleServer = "server" // a data server: takes part in the commit protocol
)

// tableURN opens the URI of a table that a client may use.
const tableURN = "drtmx:table:"

// Tables are the tables to which a certificate restricts its holder; nil means
// all tables.
func Tables(c *x509.Certificate) []string {
	var tables []string
	for _, u := range c.URIs {
		if name, ok := strings.CutPrefix(u.Opaque, tableURN); ok && u.Scheme == "urn" {
			if table, err := url.PathUnescape(name); err == nil {
				tables = append(tables, table)
			}
		}
	}
	return tables
}

// Pair is a certificate and its private key, both PEM.
type Pair struct{ Cert, Key []byte }

// Authority signs certificates. It is not safe for concurrent use.
type Authority struct {
	Pair
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

// Leaf describes a certificate to be signed.
type Leaf struct {
	Name  string   // common name
	Role  string   // organizational unit
	Hosts []string // of a server: DNS names and addresses; empty for a client
	// Tables are all that a client may use; nil means any.
	Tables []string
	// Validity. The authority's bounds it too.
	NotBefore, NotAfter time.Time
}

// clockSkew is how far the clock of a peer may be behind.
const clockSkew = 10 * time.Minute

// NewAuthority makes an authority that is valid from a little before now.
func NewAuthority(name string, now, notAfter time.Time) (*Authority, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("certs: key of the authority: %w", err)
	}
	t := &x509.Certificate{
		SerialNumber: serial(), Subject: pkix.Name{CommonName: name},
		NotBefore: now.Add(-clockSkew), NotAfter: notAfter,
		IsCA: true, BasicConstraintsValid: true, MaxPathLenZero: true,
		KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageCRLSign,
	}
	a := &Authority{key: key}
	if a.Pair, err = sign(t, t, key, key); err != nil {
		return nil, err
	}
	block, _ := pem.Decode(a.Cert)
	if a.cert, err = x509.ParseCertificate(block.Bytes); err != nil {
		return nil, fmt.Errorf("certs: the authority's certificate: %w", err)
	}
	return a, nil
}

// Sign makes a key and a certificate for it.
func (a *Authority) Sign(l Leaf) (Pair, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return Pair{}, fmt.Errorf("certs: key of %s: %w", l.Name, err)
	}
	t := &x509.Certificate{
		SerialNumber: serial(), Subject: pkix.Name{CommonName: l.Name, OrganizationalUnit: []string{l.Role}},
		NotBefore: l.NotBefore, NotAfter: l.NotAfter,
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}
	if len(l.Hosts) > 0 {
		t.ExtKeyUsage = append(t.ExtKeyUsage, x509.ExtKeyUsageServerAuth)
	}
	for _, h := range l.Hosts {
		if ip := net.ParseIP(h); ip != nil {
			t.IPAddresses = append(t.IPAddresses, ip)
		} else {
			t.DNSNames = append(t.DNSNames, h)
		}
	}
	for _, table := range l.Tables {
		t.URIs = append(t.URIs, &url.URL{Scheme: "urn", Opaque: tableURN + url.PathEscape(table)})
	}
	return sign(t, a.cert, key, a.key)
}

func serial() *big.Int {
	var b [16]byte
	_, _ = rand.Read(b[:]) // never fails
	b[0] &= 0x7f           // positive
	return new(big.Int).SetBytes(b[:])
}

func sign(t, parent *x509.Certificate, key, signer *ecdsa.PrivateKey) (Pair, error) {
	der, err := x509.CreateCertificate(rand.Reader, t, parent, &key.PublicKey, signer)
	if err != nil {
		return Pair{}, fmt.Errorf("certs: sign %s: %w", t.Subject.CommonName, err)
	}
	k, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return Pair{}, fmt.Errorf("certs: key of %s: %w", t.Subject.CommonName, err)
	}
	return Pair{
		Cert: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}),
		Key:  pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: k}),
	}, nil
}
