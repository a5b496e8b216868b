// sigstore-here DIRECTORY: what cosign talks to where there is no key, on a port of this machine: an authority that gives
// a certificate for a token, a log of certificates, and a log of signatures. For tests of what is signed so.
//
// Rule: what it answers is what cosign checks: certificates carry the promise of the log of certificates, entries the
// proof of the log of signatures. It believes every token. Keys live as long as it does; DIRECTORY gets trusted_root.json
// and signing_config.json, which is there when it answers.
package main

import (
	"bytes"
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"log"
	"math/big"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/cyberphone/json-canonicalization/go/src/webpki.org/jsoncanonicalizer"
	"github.com/go-openapi/runtime"
	ct "github.com/google/certificate-transparency-go"
	"github.com/google/certificate-transparency-go/tls"
	ctx509 "github.com/google/certificate-transparency-go/x509"
	"github.com/google/certificate-transparency-go/x509util"
	"github.com/sigstore/rekor/pkg/generated/models"
	"github.com/sigstore/rekor/pkg/types"
	_ "github.com/sigstore/rekor/pkg/types/dsse/v0.0.1"
	_ "github.com/sigstore/rekor/pkg/types/hashedrekord/v0.0.1"
	"github.com/sigstore/rekor/pkg/util"
	"github.com/sigstore/sigstore-go/pkg/root"
	"github.com/sigstore/sigstore/pkg/signature"
)

const logHost = "127.0.0.1"

var (
	poison  = asn1.ObjectIdentifier{1, 3, 6, 1, 4, 1, 11129, 2, 4, 3}
	promise = asn1.ObjectIdentifier{1, 3, 6, 1, 4, 1, 11129, 2, 4, 2}
	issuer  = asn1.ObjectIdentifier{1, 3, 6, 1, 4, 1, 57264, 1, 8}
)

func must[T any](value T, err error) T {
	if err != nil {
		log.Panic(err)
	}
	return value
}

type services struct {
	authority                *x509.Certificate
	authorityKey, ctKey, key *ecdsa.PrivateKey
}

func newKey() *ecdsa.PrivateKey { return must(ecdsa.GenerateKey(elliptic.P256(), rand.Reader)) }

func idOf(key *ecdsa.PrivateKey) [32]byte {
	return sha256.Sum256(must(x509.MarshalPKIXPublicKey(key.Public())))
}

func newServices() *services {
	s := &services{authorityKey: newKey(), ctKey: newKey(), key: newKey()}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "here"}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		KeyUsage: x509.KeyUsageCertSign, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageCodeSigning},
	}
	der := must(x509.CreateCertificate(rand.Reader, template, template, s.authorityKey.Public(), s.authorityKey))
	s.authority = must(x509.ParseCertificate(der))
	return s
}

// certify gives the key a certificate for the token's subject, with the promise of the log of certificates in it.
func (s *services) certify(public crypto.PublicKey, subject, tokenIssuer string) []byte {
	template := &x509.Certificate{
		SerialNumber: must(rand.Int(rand.Reader, big.NewInt(1<<62))), URIs: []*url.URL{must(url.Parse(subject))},
		NotBefore: time.Now().Add(-time.Minute), NotAfter: time.Now().Add(10 * time.Minute),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageCodeSigning},
	}
	named := pkix.Extension{Id: issuer, Value: must(asn1.MarshalWithParams(tokenIssuer, "utf8"))}
	sign := func(last pkix.Extension) []byte {
		template.ExtraExtensions = []pkix.Extension{named, last}
		return must(x509.CreateCertificate(rand.Reader, template, s.authority, public, s.authorityKey))
	}
	before := sign(pkix.Extension{Id: poison, Critical: true, Value: []byte{5, 0}})
	chain := []*ctx509.Certificate{must(ctx509.ParseCertificate(before)), must(ctx509.ParseCertificate(s.authority.Raw))}
	now := uint64(time.Now().UnixMilli())
	leaf := must(ct.MerkleTreeLeafFromChain(chain, ct.PrecertLogEntryType, now))
	sct := ct.SignedCertificateTimestamp{SCTVersion: ct.V1, LogID: ct.LogID{KeyID: idOf(s.ctKey)}, Timestamp: now}
	signed := must(ct.SerializeSCTSignatureInput(sct, ct.LogEntry{Leaf: *leaf}))
	sct.Signature = ct.DigitallySigned(must(tls.CreateSignature(*s.ctKey, tls.SHA256, signed)))
	list := must(x509util.MarshalSCTsIntoSCTList([]*ct.SignedCertificateTimestamp{&sct}))
	return sign(pkix.Extension{Id: promise, Value: must(asn1.Marshal(must(tls.Marshal(*list))))})
}

func (s *services) serveCertificate(w http.ResponseWriter, r *http.Request) {
	var asked struct {
		PublicKeyRequest struct{ PublicKey struct{ Content string } }
	}
	if err := json.NewDecoder(r.Body).Decode(&asked); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	var claims struct{ Sub, Iss string }
	parts := strings.Split(r.Header.Get("Authorization"), ".")
	if len(parts) != 3 || json.Unmarshal(must(base64.RawURLEncoding.DecodeString(parts[1])), &claims) != nil {
		http.Error(w, "no token", http.StatusUnauthorized)
		return
	}
	block, _ := pem.Decode([]byte(asked.PublicKeyRequest.PublicKey.Content))
	leaf := s.certify(must(x509.ParsePKIXPublicKey(block.Bytes)), claims.Sub, claims.Iss)
	var chain []string
	for _, der := range [][]byte{leaf, s.authority.Raw} {
		chain = append(chain, string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})))
	}
	answer(w, http.StatusOK, map[string]any{
		"signedCertificateEmbeddedSct": map[string]any{"chain": map[string]any{"certificates": chain}},
	})
}

// serveEntry takes a signature into the log. Each entry is a log of its own, of one entry.
func (s *services) serveEntry(w http.ResponseWriter, r *http.Request) {
	ctx := context.Background()
	proposed, err := models.UnmarshalProposedEntry(bytes.NewReader(must(io.ReadAll(r.Body))), runtime.JSONConsumer())
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	body := must(types.CanonicalizeEntry(ctx, must(types.CreateVersionedEntry(proposed))))
	signer := must(signature.LoadECDSASignerVerifier(s.key, crypto.SHA256))
	hash := sha256.Sum256(append([]byte{0}, body...))
	id := idOf(s.key)
	payload := map[string]any{
		"body": base64.StdEncoding.EncodeToString(body), "integratedTime": time.Now().Unix(),
		"logID": hex.EncodeToString(id[:]), "logIndex": 0,
	}
	canonical := must(jsoncanonicalizer.Transform(must(json.Marshal(payload))))
	payload["verification"] = map[string]any{
		"signedEntryTimestamp": must(signer.SignMessage(bytes.NewReader(canonical))),
		"inclusionProof": map[string]any{
			"treeSize": 1, "logIndex": 0, "rootHash": hex.EncodeToString(hash[:]), "hashes": []string{},
			"checkpoint": string(must(util.CreateAndSignCheckpoint(ctx, logHost, 1, 1, hash[:], signer))),
		},
	}
	name := strings.Repeat("0", 16) + hex.EncodeToString(hash[:])
	w.Header().Set("ETag", name)
	answer(w, http.StatusCreated, map[string]any{name: payload})
}

func answer(w http.ResponseWriter, status int, document any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	w.Write(must(json.Marshal(document)))
}

func (s *services) trustedRoot(address string) []byte {
	start, end := time.Now().Add(-time.Hour), time.Now().Add(24*time.Hour)
	logs := func(key *ecdsa.PrivateKey) map[string]*root.TransparencyLog {
		id := idOf(key)
		return map[string]*root.TransparencyLog{hex.EncodeToString(id[:]): {
			BaseURL: address, ID: id[:], ValidityPeriodStart: start, ValidityPeriodEnd: end,
			HashFunc: crypto.SHA256, PublicKey: key.Public(), SignatureHashFunc: crypto.SHA256,
		}}
	}
	authority := &root.FulcioCertificateAuthority{
		URI: address, Root: s.authority, ValidityPeriodStart: start, ValidityPeriodEnd: end,
	}
	trusted := must(root.NewTrustedRoot(
		root.TrustedRootMediaType01, []root.CertificateAuthority{authority}, logs(s.ctKey), nil, logs(s.key),
	))
	return must(trusted.MarshalJSON())
}

func signingConfig(address string) []byte {
	service := []map[string]any{{
		"url": address, "majorApiVersion": 1, "operator": "here",
		"validFor": map[string]string{"start": "2020-01-01T00:00:00Z"},
	}}
	return must(json.Marshal(map[string]any{
		"mediaType": "application/vnd.dev.sigstore.signingconfig.v0.2+json", "caUrls": service, "rekorTlogUrls": service,
		"rekorTlogConfig": map[string]string{"selector": "ANY"}, "tsaConfig": map[string]string{"selector": "ANY"},
	}))
}

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "sigstore-here: one directory, please: sigstore-here DIRECTORY")
		os.Exit(2)
	}
	s := newServices()
	http.HandleFunc("POST /api/v2/signingCert", s.serveCertificate)
	http.HandleFunc("POST /api/v1/log/entries", s.serveEntry)
	listener := must(net.Listen("tcp", "127.0.0.1:0"))
	address := "http://" + listener.Addr().String()
	for _, file := range []struct {
		name string
		data []byte
	}{{"trusted_root.json", s.trustedRoot(address)}, {"signing_config.json", signingConfig(address)}} {
		path := filepath.Join(os.Args[1], file.name)
		if err := os.WriteFile(path+".new", file.data, 0o644); err != nil {
			log.Panic(err)
		}
		if err := os.Rename(path+".new", path); err != nil {
			log.Panic(err)
		}
	}
	log.Panic(http.Serve(listener, nil))
}
