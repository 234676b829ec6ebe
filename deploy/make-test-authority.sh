#!/bin/sh
# Makes an authority for trying TLS out, and a certificate for each server: not for production, where yours is used.
#
#   deploy/make-test-authority.sh DIR NAME[=HOST[,HOST…]] …
#
# writes DIR/ca.pem, and for each NAME DIR/NAME/cert.pem and DIR/NAME/key.pem, valid for the host NAME or those given
# (addresses may be among them). What is there already is kept. Needs openssl.
set -eu

[ $# -ge 2 ] || { sed -n 's/^# \{0,1\}//; 2,7p' "$0" >&2; exit 2; }
umask 077
dir=$1
shift
mkdir -p "$dir"
days=825

fail() { echo "make-test-authority: openssl failed: $1" >&2; exit 1; }

if ! [ -f "$dir/ca.pem" ]; then
  openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days $days \
    -subj "/CN=Tidegate test authority" -addext basicConstraints=critical,CA:TRUE \
    -addext keyUsage=critical,keyCertSign,cRLSign \
    -keyout "$dir/ca.key" -out "$dir/ca.pem" 2>"$dir/log" || fail "$(tail -n 1 "$dir/log")"
  chmod 644 "$dir/ca.pem"
fi

for entry in "$@"; do
  name=${entry%%=*}
  hosts=${entry#*=}
  [ -f "$dir/$name/cert.pem" ] && continue
  mkdir -p "$dir/$name"
  chmod 755 "$dir" "$dir/$name"
  alternatives=
  for host in $(echo "$hosts" | tr ',' ' '); do
    case $host in
      *[!0-9.]*) kind=DNS; case $host in *:*) kind=IP ;; esac ;;
      *) kind=IP ;;
    esac
    alternatives=${alternatives:+$alternatives,}$kind:$host
  done
  openssl req -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -subj "/CN=$name" \
    -keyout "$dir/$name/key.pem" -out "$dir/$name/request.pem" 2>"$dir/log" || fail "$(tail -n 1 "$dir/log")"
  printf 'subjectAltName=%s\nextendedKeyUsage=serverAuth,clientAuth\n' "$alternatives" >"$dir/$name/extensions"
  openssl x509 -req -in "$dir/$name/request.pem" -CA "$dir/ca.pem" -CAkey "$dir/ca.key" -CAcreateserial -days $days \
    -extfile "$dir/$name/extensions" -out "$dir/$name/cert.pem" 2>"$dir/log" || fail "$(tail -n 1 "$dir/log")"
  rm -f "$dir/$name/request.pem" "$dir/$name/extensions"
  chmod 644 "$dir/$name/cert.pem"
done
rm -f "$dir/log"
