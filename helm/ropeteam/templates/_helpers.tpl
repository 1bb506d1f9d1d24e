{{/* Names and labels. */}}
{{- define "ropeteam.fullname" -}}
{{- if contains .Chart.Name .Release.Name -}}{{ .Release.Name | trunc 50 | trimSuffix "-" }}
{{- else -}}{{ printf "%s-%s" .Release.Name .Chart.Name | trunc 50 | trimSuffix "-" }}{{- end -}}
{{- end -}}

{{- define "ropeteam.selector" -}}
app.kubernetes.io/name: ropeteam
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: operator
{{- end -}}

{{- define "ropeteam.labels" -}}
{{ include "ropeteam.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end -}}

{{- define "ropeteam.serviceAccount" -}}
{{- .Values.serviceAccount.name | default (include "ropeteam.fullname" .) -}}
{{- end -}}

{{- define "ropeteam.keySecret" -}}
{{- .Values.operatorKey.existingSecret | default (printf "%s-key" (include "ropeteam.fullname" .)) -}}
{{- end -}}

{{/* One image reference: a digest wins over a tag. */}}
{{- define "ropeteam.image" -}}
{{- $name := .Values.image.repository -}}
{{- with .Values.image.registry }}{{ $name = printf "%s/%s" . $name }}{{ end -}}
{{- if .Values.image.digest }}{{ printf "%s@%s" $name .Values.image.digest }}
{{- else }}{{ printf "%s:%s" $name (.Values.image.tag | default .Chart.AppVersion) }}{{ end -}}
{{- end -}}

{{/* What the operator may do where jobs are: as rules of a Role or a ClusterRole. */}}
{{- define "ropeteam.jobRules" -}}
- apiGroups: [ropeteam.dev]
  resources: [trainingjobs]
  verbs: [get, list, watch, delete]
- apiGroups: [ropeteam.dev]
  resources: [trainingjobs/status]
  verbs: [update]
- apiGroups: [""]
  resources: [pods]
  verbs: [get, list, watch, create, delete]
- apiGroups: [""]
  resources: [services]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [""]
  resources: [secrets, events]
  verbs: [create]
{{- if include "ropeteam.jobPolicy" . }}
- apiGroups: [networking.k8s.io]
  resources: [networkpolicies]
  verbs: [create]
{{- end }}
{{- end -}}

{{/* Who may reach the pods of jobs, for their NetworkPolicies. Empty: they get none. */}}
{{- define "ropeteam.jobPolicy" -}}
{{- if and .Values.networkPolicy.enabled .Values.networkPolicy.jobs -}}
{{- $here := dict "matchLabels" (dict "kubernetes.io/metadata.name" .Release.Namespace) -}}
{{- $operators := dict "matchLabels" (include "ropeteam.selector" . | fromYaml) -}}
{{- $peer := dict "namespaceSelector" $here "podSelector" $operators -}}
{{- dict "operatorFrom" (list $peer) "metricsFrom" .Values.networkPolicy.metricsFrom | toJson -}}
{{- end -}}
{{- end -}}
