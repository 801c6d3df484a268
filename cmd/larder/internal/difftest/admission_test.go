package difftest

import (
	"net/http"
	"testing"
)

// guards are the objects that configure admission plugins, in namespaces of their own.
var guards = []request{
	post("/api/v1/namespaces", `{"apiVersion":"v1","kind":"Namespace","metadata":{"name":"guarded","labels":{"pod-security.kubernetes.io/enforce":"baseline","pod-security.kubernetes.io/warn":"restricted","guard":"on"}}}`),
	post("/api/v1/namespaces", `{"apiVersion":"v1","kind":"Namespace","metadata":{"name":"full"}}`),
	post("/api/v1/namespaces/full/serviceaccounts", `{"apiVersion":"v1","kind":"ServiceAccount","metadata":{"name":"default"}}`),
	post("/api/v1/namespaces/guarded/serviceaccounts", `{"apiVersion":"v1","kind":"ServiceAccount","metadata":{"name":"default"},"imagePullSecrets":[{"name":"pull"}]}`),
	post("/api/v1/namespaces/guarded/serviceaccounts", `{"apiVersion":"v1","kind":"ServiceAccount","metadata":{"name":"strict","annotations":{"kubernetes.io/enforce-mountable-secrets":"true"}},"automountServiceAccountToken":false}`),
	post("/api/v1/namespaces/guarded/pods", `{"apiVersion":"v1","kind":"Pod","metadata":{"name":"there"},"spec":{"containers":[{"name":"c","image":"i"}]}}`),
	post("/api/v1/namespaces/guarded/limitranges", `{"apiVersion":"v1","kind":"LimitRange","metadata":{"name":"l"},"spec":{"limits":[{"type":"Container","default":{"cpu":"500m"},"defaultRequest":{"cpu":"100m"},"max":{"cpu":"2"}},{"type":"PersistentVolumeClaim","max":{"storage":"5Gi"}}]}}`),
	post("/api/v1/namespaces/full/resourcequotas", `{"apiVersion":"v1","kind":"ResourceQuota","metadata":{"name":"q"},"spec":{"hard":{"pods":"2","count/configmaps":"3","requests.cpu":"1","services.nodeports":"0"}}}`),
	{Method: http.MethodPut, Path: "/api/v1/namespaces/full/resourcequotas/q/status", Type: js, Body: `{"apiVersion":"v1","kind":"ResourceQuota","metadata":{"name":"q"},"spec":{"hard":{"pods":"2","count/configmaps":"3","requests.cpu":"1","services.nodeports":"0"}},"status":{"hard":{"pods":"2","count/configmaps":"3","requests.cpu":"1","services.nodeports":"0"},"used":{"pods":"1","count/configmaps":"3","requests.cpu":"900m","services.nodeports":"0"}}}`},
	post("/apis/node.k8s.io/v1/runtimeclasses", `{"apiVersion":"node.k8s.io/v1","kind":"RuntimeClass","metadata":{"name":"heavy"},"handler":"h","overhead":{"podFixed":{"cpu":"50m"}},"scheduling":{"nodeSelector":{"heavy":"yes"},"tolerations":[{"key":"heavy","operator":"Exists"}]}}`),
	post("/apis/storage.k8s.io/v1/storageclasses", `{"apiVersion":"storage.k8s.io/v1","kind":"StorageClass","metadata":{"name":"usual","annotations":{"storageclass.kubernetes.io/is-default-class":"true"}},"provisioner":"example.org/p"}`),
	post("/apis/networking.k8s.io/v1/ingressclasses", `{"apiVersion":"networking.k8s.io/v1","kind":"IngressClass","metadata":{"name":"usual","annotations":{"ingressclass.kubernetes.io/is-default-class":"true"}},"spec":{"controller":"example.org/c"}}`),
	post("/api/v1/namespaces/guarded/configmaps", `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"limits"},"data":{"longest":"8"}}`),
	post(policies+"validatingadmissionpolicies", `{"apiVersion":"admissionregistration.k8s.io/v1","kind":"ValidatingAdmissionPolicy","metadata":{"name":"short"},"spec":{"paramKind":{"apiVersion":"v1","kind":"ConfigMap"},"matchConstraints":{"resourceRules":[{"apiGroups":[""],"apiVersions":["v1"],"operations":["CREATE","UPDATE"],"resources":["configmaps"]}]},"matchConditions":[{"name":"judged","expression":"'judged' in object.metadata.?labels.orValue({})"}],"variables":[{"name":"longest","expression":"int(params.data.longest)"}],"validations":[{"expression":"size(object.metadata.name) <= variables.longest","messageExpression":"'a name of ' + string(size(object.metadata.name)) + ' is too long'","reason":"RequestEntityTooLarge"},{"expression":"!('bad' in object.?data.orValue({}))","message":"no bad data"}]}}`),
	post(policies+"validatingadmissionpolicybindings", `{"apiVersion":"admissionregistration.k8s.io/v1","kind":"ValidatingAdmissionPolicyBinding","metadata":{"name":"short"},"spec":{"policyName":"short","paramRef":{"name":"limits","namespace":"guarded","parameterNotFoundAction":"Deny"},"validationActions":["Deny"],"matchResources":{"namespaceSelector":{"matchLabels":{"guard":"on"}}}}}`),
	post(policies+"validatingadmissionpolicies", `{"apiVersion":"admissionregistration.k8s.io/v1","kind":"ValidatingAdmissionPolicy","metadata":{"name":"told"},"spec":{"matchConstraints":{"resourceRules":[{"apiGroups":[""],"apiVersions":["v1"],"operations":["*"],"resources":["secrets"]}]},"validations":[{"expression":"request.operation == 'NEVER'"}]}}`),
	post(policies+"validatingadmissionpolicybindings", `{"apiVersion":"admissionregistration.k8s.io/v1","kind":"ValidatingAdmissionPolicyBinding","metadata":{"name":"told"},"spec":{"policyName":"told","validationActions":["Warn","Audit"],"matchResources":{"namespaceSelector":{"matchLabels":{"guard":"on"}}}}}`),
	post(policies+"validatingadmissionpolicies", `{"apiVersion":"admissionregistration.k8s.io/v1","kind":"ValidatingAdmissionPolicy","metadata":{"name":"events"},"spec":{"matchConstraints":{"resourceRules":[{"apiGroups":["events.k8s.io"],"apiVersions":["v1"],"operations":["CREATE"],"resources":["events"]}]},"validations":[{"expression":"object.reason != 'Bad'","messageExpression":"'bad, in ' + object.apiVersion + ', requested in ' + request.requestKind.group"}]}}`),
	post(policies+"validatingadmissionpolicybindings", `{"apiVersion":"admissionregistration.k8s.io/v1","kind":"ValidatingAdmissionPolicyBinding","metadata":{"name":"events"},"spec":{"policyName":"events","validationActions":["Deny"],"matchResources":{"namespaceSelector":{"matchLabels":{"guard":"on"}}}}}`),
	post(policies+"mutatingadmissionpolicies", `{"apiVersion":"admissionregistration.k8s.io/v1","kind":"MutatingAdmissionPolicy","metadata":{"name":"mark"},"spec":{"reinvocationPolicy":"IfNeeded","matchConstraints":{"resourceRules":[{"apiGroups":["apps"],"apiVersions":["v1"],"operations":["CREATE"],"resources":["deployments"]}],"namespaceSelector":{"matchLabels":{"guard":"on"}}},"mutations":[{"patchType":"ApplyConfiguration","applyConfiguration":{"expression":"Object{metadata: Object.metadata{labels: {\"marked\": \"yes\"}}}"}},{"patchType":"JSONPatch","jsonPatch":{"expression":"[JSONPatch{op: \"add\", path: \"/spec/replicas\", value: 5}]"}}]}}`),
	post(policies+"mutatingadmissionpolicybindings", `{"apiVersion":"admissionregistration.k8s.io/v1","kind":"MutatingAdmissionPolicyBinding","metadata":{"name":"mark"},"spec":{"policyName":"mark"}}`),
	post(policies+"validatingwebhookconfigurations", `{"apiVersion":"admissionregistration.k8s.io/v1","kind":"ValidatingWebhookConfiguration","metadata":{"name":"gone"},"webhooks":[`+
		hook("url.example.com", `"url":"https://127.0.0.1:1/x"`, "Fail")+`,`+hook("service.example.com", `"service":{"namespace":"guarded","name":"nosuch"}`, "Fail")+`,`+
		hook("headless.example.com", `"service":{"namespace":"diff","name":"s","port":81}`, "Fail")+`,`+hook("open.example.com", `"url":"https://127.0.0.1:1/y"`, "Ignore")+`]}`),
}

const policies = "/apis/admissionregistration.k8s.io/v1/"

// hook returns a webhook that reviews Endpoints labelled with its name.
func hook(name, where, failure string) string {
	return `{"name":"` + name + `","clientConfig":{` + where + `},"failurePolicy":"` + failure + `","sideEffects":"None","admissionReviewVersions":["v1"],"objectSelector":{"matchLabels":{"hook":"` + name + `"}},"rules":[{"apiGroups":[""],"apiVersions":["v1"],"operations":["*"],"resources":["endpoints"]}]}`
}

func post(path, body string) request {
	return request{Method: http.MethodPost, Path: path, Type: js, Body: body}
}

// createGuards creates the objects that configure admission plugins. The servers then restart, so that they know these
// objects when the comparison begins. Recorded responses do not include them: the tests of package admission need no
// other server.
func (f *fixture) createGuards(t *testing.T) {
	t.Helper()
	if *stockBinary == "" || *rewrite {
		return
	}
	for _, r := range guards {
		f.must(t, f.larder, r)
	}
}

// admissions are dry runs of writes that plugins change or reject.
func admissions() []request {
	const guarded, full = "/api/v1/namespaces/guarded/", "/api/v1/namespaces/full/"
	pod := func(namespace, meta, spec string) request {
		return do("POST", namespace+"pods?dryRun=All", js, `{"apiVersion":"v1","kind":"Pod","metadata":{"name":"dry"`+meta+`},"spec":{`+spec+`"containers":[{"name":"c","image":"i"}]}}`)
	}
	container := func(namespace, container string) request {
		return do("POST", namespace+"pods?dryRun=All", js, `{"apiVersion":"v1","kind":"Pod","metadata":{"name":"dry"},"spec":{"containers":[{"name":"c","image":"i",`+container+`}]}}`)
	}
	endpoints := func(hook string) request {
		return do("POST", guarded+"endpoints?dryRun=All", js, `{"apiVersion":"v1","kind":"Endpoints","metadata":{"name":"dry","labels":{"hook":"`+hook+`"}}}`)
	}
	judged := func(name, data string) request {
		return do("POST", guarded+"configmaps?dryRun=All", js, `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"`+name+`","labels":{"judged":"1"}},"data":{`+data+`}}`)
	}
	all := []request{
		// ServiceAccount, LimitRanger, Priority, DefaultTolerationSeconds, RuntimeClass, PodSecurity.
		pod(guarded, "", ""), pod(guarded, "", `"serviceAccountName":"nosuch",`), pod(guarded, "", `"serviceAccountName":"strict",`), pod(guarded, "", `"automountServiceAccountToken":false,`),
		pod(guarded, "", `"serviceAccountName":"strict","volumes":[{"name":"v","secret":{"secretName":"s"}}],`), pod(guarded, `,"annotations":{"kubernetes.io/config.mirror":"x"}`, ""), pod(guarded, `,"annotations":{"kubernetes.io/config.mirror":"x"}`, `"serviceAccountName":"default",`),
		pod("/api/v1/namespaces/nosuchns/", "", ""), container(guarded, `"resources":{"limits":{"cpu":"3"}}`), container(guarded, `"resources":{"requests":{"cpu":"1"}}`), container(guarded, `"securityContext":{"privileged":true}`),
		container(guarded, `"securityContext":{"allowPrivilegeEscalation":false,"runAsNonRoot":true,"capabilities":{"drop":["ALL"]},"seccompProfile":{"type":"RuntimeDefault"}}`),
		pod(guarded, "", `"hostNetwork":true,`), pod(guarded, "", `"priorityClassName":"high",`), pod(guarded, "", `"priorityClassName":"nosuch",`), pod(guarded, "", `"priority":7,`), pod(guarded, "", `"priorityClassName":"high","priority":7,`), pod(guarded, "", `"priorityClassName":"system-node-critical",`),
		pod(guarded, "", `"runtimeClassName":"heavy",`), pod(guarded, "", `"runtimeClassName":"nosuch",`), pod(guarded, "", `"runtimeClassName":"heavy","overhead":{"cpu":"1"},`), pod(guarded, "", `"nodeSelector":{"heavy":"no"},"runtimeClassName":"heavy",`),
		pod(guarded, "", `"tolerations":[{"operator":"Exists"}],`), pod(guarded, "", `"tolerations":[{"key":"node.kubernetes.io/not-ready","operator":"Exists","effect":"NoExecute","tolerationSeconds":5}],`),
		do("PATCH", "/api/v1/namespaces/guarded?dryRun=All", mergePatch, `{"metadata":{"labels":{"pod-security.kubernetes.io/enforce":"restricted"}}}`), do("PATCH", "/api/v1/namespaces/guarded?dryRun=All", mergePatch, `{"metadata":{"labels":{"pod-security.kubernetes.io/enforce":"nosuch"}}}`),
		do("PATCH", guarded+"pods/there/ephemeralcontainers?dryRun=All", strategicPatch, `{"spec":{"ephemeralContainers":[{"name":"e","image":"i","securityContext":{"privileged":true}}]}}`), do("PATCH", guarded+"pods/there/ephemeralcontainers?dryRun=All", strategicPatch, `{"spec":{"ephemeralContainers":[{"name":"e","image":"i"}]}}`),
		do("POST", guarded+"pods/there/binding?dryRun=All", js, `{"apiVersion":"v1","kind":"Binding","metadata":{"name":"there"},"target":{"kind":"Node","name":"n1"}}`), do("PATCH", guarded+"pods/there/resize?dryRun=All", strategicPatch, `{"spec":{"containers":[{"name":"c","resources":{"requests":{"cpu":"3"}}}]}}`),
		// ResourceQuota.
		pod(full, "", ""), container(full, `"resources":{"requests":{"cpu":"50m"}}`), container(full, `"resources":{"requests":{"cpu":"2"}}`), do("POST", full+"configmaps?dryRun=All", js, `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"dry"}}`),
		do("POST", full+"services?dryRun=All", js, `{"apiVersion":"v1","kind":"Service","metadata":{"name":"dry"},"spec":{"type":"NodePort","clusterIP":"10.0.0.123","ports":[{"port":80,"nodePort":30123}]}}`),
		// Volumes, ingresses, nodes, certificates, namespaces.
		do("POST", guarded+"persistentvolumeclaims?dryRun=All", js, `{"apiVersion":"v1","kind":"PersistentVolumeClaim","metadata":{"name":"dry"},"spec":{"accessModes":["ReadWriteOnce"],"resources":{"requests":{"storage":"1Gi"}}}}`),
		do("POST", guarded+"persistentvolumeclaims?dryRun=All", js, `{"apiVersion":"v1","kind":"PersistentVolumeClaim","metadata":{"name":"dry"},"spec":{"accessModes":["ReadWriteOnce"],"resources":{"requests":{"storage":"9Gi"}}}}`),
		do("PATCH", "/api/v1/namespaces/diff/persistentvolumeclaims/pvc?dryRun=All", mergePatch, `{"spec":{"resources":{"requests":{"storage":"2Gi"}}}}`),
		do("POST", "/apis/networking.k8s.io/v1/namespaces/guarded/ingresses?dryRun=All", js, `{"apiVersion":"networking.k8s.io/v1","kind":"Ingress","metadata":{"name":"dry"},"spec":{"defaultBackend":{"service":{"name":"s","port":{"number":80}}}}}`),
		do("POST", "/api/v1/nodes?dryRun=All", js, `{"apiVersion":"v1","kind":"Node","metadata":{"name":"dry"}}`), do("POST", "/api/v1/persistentvolumes?dryRun=All", js, `{"apiVersion":"v1","kind":"PersistentVolume","metadata":{"name":"dry"},"spec":{"capacity":{"storage":"1Gi"},"accessModes":["ReadWriteOnce"],"hostPath":{"path":"/x"}}}`),
		do("POST", "/apis/certificates.k8s.io/v1/certificatesigningrequests?dryRun=All", js, `{"apiVersion":"certificates.k8s.io/v1","kind":"CertificateSigningRequest","metadata":{"name":"dry"},"spec":{"request":"","signerName":"kubernetes.io/kube-apiserver-client","usages":["client auth"]}}`),
		do("DELETE", "/api/v1/namespaces/default?dryRun=All", js, ""), do("DELETE", "/api/v1/namespaces/kube-public?dryRun=All", js, ""), do("DELETE", "/api/v1/namespaces/guarded?dryRun=All", js, ""),
		// Policies and webhooks.
		judged("short", `"a":"b"`), judged("much-too-long", `"a":"b"`), judged("bad", `"bad":"1"`), judged("bad-and-too-long", `"bad":"1"`), do("POST", guarded+"configmaps?dryRun=All", js, `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"long-but-not-judged"}}`),
		do("POST", guarded+"secrets?dryRun=All", js, `{"apiVersion":"v1","kind":"Secret","metadata":{"name":"dry"}}`), do("DELETE", guarded+"secrets/nosuch?dryRun=All", js, ""),
		do("POST", "/apis/apps/v1/namespaces/guarded/deployments?dryRun=All", js, `{"apiVersion":"apps/v1","kind":"Deployment","metadata":{"name":"dry"},"spec":{"replicas":1,"selector":{"matchLabels":{"a":"b"}},"template":{"metadata":{"labels":{"a":"b"}},"spec":{"hostNetwork":true,"containers":[{"name":"c","image":"i"}]}}}}`),
		// Events of both groups are stored alike.
		do("POST", guarded+"events?dryRun=All", js, `{"apiVersion":"v1","kind":"Event","metadata":{"name":"dry"},"involvedObject":{"kind":"Pod","name":"p","namespace":"guarded"},"reason":"Bad","type":"Normal"}`),
		do("POST", "/apis/events.k8s.io/v1/namespaces/guarded/events?dryRun=All", js, `{"apiVersion":"events.k8s.io/v1","kind":"Event","metadata":{"name":"dry"},"eventTime":"2026-01-01T00:00:00.000000Z","reportingController":"c","reportingInstance":"i","action":"a","reason":"Bad","type":"Normal","regarding":{"kind":"Pod","name":"p","namespace":"guarded"}}`),
		endpoints("url.example.com"), endpoints("service.example.com"), endpoints("headless.example.com"), endpoints("open.example.com"), endpoints("none"),
	}
	for _, path := range []string{"pods/there/exec?command=x&stdout=true", "pods/there/attach?stdout=true", "pods/there/portforward", "pods/nosuch/exec?command=x"} {
		all = append(all, do("POST", guarded+path, js, ""))
	}
	return all
}
